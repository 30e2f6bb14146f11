"""shown."""
