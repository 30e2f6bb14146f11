"""truth."""
