"""Pipelines in Real-Time Mode: one Spark query of several stages, scheduled by the threads of its tasks."""
