"""The API for users: `Pipeline`, `treadle.load`, `treadle.gate`, and drawings of a pipeline."""
