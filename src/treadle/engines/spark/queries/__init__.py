"""Jobs, stages, plans and progress of queries, read from Spark's monitoring pages."""
