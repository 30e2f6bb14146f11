"""What asks the Linux kernel: files of other processes, credentials, limits. It knows nothing of Treadle or Spark."""
