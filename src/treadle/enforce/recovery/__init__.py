"""Makes changes to other processes safe: each is recorded first, and undone at the end or after kill -9."""
