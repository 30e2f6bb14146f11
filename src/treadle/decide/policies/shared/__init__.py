"""Shared by several policies: columns of metrics, progress charts, options written as text."""
