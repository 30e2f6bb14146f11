"""Access to Spark for pipelines: sessions, the JVM, starting and stopping queries, executors."""
