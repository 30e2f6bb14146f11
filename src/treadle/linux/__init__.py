"""Linux interfaces: /proc, files of other processes, credentials, limits. No knowledge of Treadle or Spark."""
