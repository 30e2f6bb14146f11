"""One run of a pipeline from start to stop: its folder, its channels, its commands and its status."""
