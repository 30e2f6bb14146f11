"""Workloads for benchmarks: the papers' applications, others to attach to, load generators."""
