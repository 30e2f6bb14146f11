"""The nodes of a pipeline and the graph they form, checked before anything runs."""
