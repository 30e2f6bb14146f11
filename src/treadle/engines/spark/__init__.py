"""A running, unchanged Spark application as an engine of the control loop."""
