"""Pipelines to measure with: what the papers ran, on the Pipeline API."""
