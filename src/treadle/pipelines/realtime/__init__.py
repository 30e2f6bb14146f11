"""Pipelines in Spark's Real-Time Mode: one query of several stages for each sink; the kernel schedules its threads."""
