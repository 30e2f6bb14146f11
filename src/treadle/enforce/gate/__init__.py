"""Decides which hop (streaming query of a pipeline) may run its next batch: a gate grants slots (Haren, section 4)."""
