"""Micro-batches of running applications: whose tasks start next, and whose batch begins next."""
