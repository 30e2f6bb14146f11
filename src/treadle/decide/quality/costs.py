"""What a row costs, learnt from the rows and batches that a task had and the CPU it used for them.

The paper takes CPU to be in proportion to the rows (section 3.3). A micro-batch costs something even where all of its
rows are dropped, and who has time runs many small ones; so a batch and a row are told apart, over the last cycles, and
remembered for when there are none. It knows numbers by task, and nothing of what they are for.
"""

from __future__ import annotations

import numpy as np

from treadle.model import Floats

DOUBT = 0.02
"""Against a cost of batches: where rows and batches don't vary, all is held to be for the rows."""
LEAST = 0.1
"""Of the CPU through the rows: a row is never held to be cheaper than that."""


class Costs:
    """cpu = b batches + r rows for each task, fitted; with each cycle older ones count by `keep` less.

    b and r have the least sum of (cpu - b batches - r rows)^2 + DOUBT (b batches)^2, and are not negative.
    """

    def __init__(self, tasks: int, *, keep: float = 0.85) -> None:
        self._keep = keep
        self._sums = np.zeros((6, tasks))
        self.per_batch = np.zeros(tasks)
        """Core seconds."""
        self.per_row = np.zeros(tasks)
        """Core seconds; 0 before the first row."""

    def copy(self, task: int, other: Costs, its: int) -> None:
        """Take over what others have learnt of a task of theirs."""
        self._sums[:, task] = other._sums[:, its]
        self.per_batch[task], self.per_row[task] = other.per_batch[its], other.per_row[its]

    def update(self, rows: Floats, batches: Floats, cpu: Floats) -> None:
        """One more cycle, all three by second."""
        told = cpu > 0.0
        new = np.stack([rows * rows, batches * batches, rows * batches, rows * cpu, batches * cpu, rows])
        self._sums = np.where(told, self._keep * self._sums + new, self._sums)
        rr, bb, rb, rc, bc, seen = self._sums
        known = seen > 0.0
        doubted = (1.0 + DOUBT) * bb
        divisor = rr * doubted - rb**2
        alone = rc / np.where(rr > 0.0, rr, 1.0)
        fitted = (rc * doubted - bc * rb) / np.where(divisor > 0.0, divisor, 1.0)
        per_row = np.clip(np.where(divisor > 0.0, fitted, alone), LEAST * alone, alone)
        self.per_row = np.where(known, per_row, self.per_row)
        per_batch = np.maximum((bc - per_row * rb) / np.where(bb > 0.0, bb, 1.0), 0.0)
        self.per_batch = np.where(known & (bb > 0.0), per_batch, self.per_batch)
