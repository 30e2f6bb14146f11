"""Rows, bytes and CPU counted inside of running tasks and batches, turned into columns of metrics."""
