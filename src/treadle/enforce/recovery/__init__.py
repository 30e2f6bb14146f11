"""What makes changes to other processes safe: they are written down first, and undone at the end or after kill -9."""
