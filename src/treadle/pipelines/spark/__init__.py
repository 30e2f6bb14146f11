"""What pipelines need of a Spark session: its JVM, its queries and how they end, its executors."""
