"""around."""
