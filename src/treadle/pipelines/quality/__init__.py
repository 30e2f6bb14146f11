"""Data quality of a running pipeline: promises to sinks, dropped rows, source rates, placement (Stream-Economics)."""
