"""Pipelines in Spark's Real-Time Mode: a query of several stages for each sink, scheduled by its tasks' threads."""
