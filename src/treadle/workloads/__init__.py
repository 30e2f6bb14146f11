"""Workloads for benchmarks: the papers' applications on the Pipeline API, Spark applications, load generators."""
