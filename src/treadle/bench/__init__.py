"""Benchmarks: comparisons of policies, and the speed of Treadle itself."""
