"""Which thread of a JVM works for which operator of which query."""
