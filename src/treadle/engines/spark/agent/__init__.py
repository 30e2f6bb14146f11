"""Treadle's agent inside of a JVM: loading it, asking it for counters, and reading what it answers."""
