"""Treadle decides which streaming operators get the CPU, when, and how much of their data they may shed."""

__version__ = "0.1.0"
