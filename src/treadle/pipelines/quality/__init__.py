"""Quality of data in a running pipeline: promises, drops, rates of sources, placement (Stream-Economics)."""
