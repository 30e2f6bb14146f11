"""What several policies need: columns of metrics, progress along paths, options written as text."""
