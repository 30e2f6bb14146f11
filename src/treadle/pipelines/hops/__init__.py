"""hops."""
