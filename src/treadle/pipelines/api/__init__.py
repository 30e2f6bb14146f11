"""What users write and call: `Pipeline`, `treadle.load`, `treadle.gate`, and the drawing of a pipeline."""
