"""Channels join the hops of a pipeline: a log of rows with one writer, many consumers, and an exact backlog.

The embedded one is a folder of Arrow segments (`segment`, `log`), read and written in the JVM as well as from Python.
"""
