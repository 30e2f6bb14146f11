"""How a batch is held back until the gate grants it: in the source, or in `foreachBatch`."""
