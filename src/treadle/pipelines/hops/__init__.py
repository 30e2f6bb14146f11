"""Hops: Spark queries of one operator each, or of a sink with all that it needs. Builds them and measures them."""
