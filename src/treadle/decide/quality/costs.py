"""The CPU cost of a row and of a batch, learnt from the rows, the batches and the CPU of each task.

The paper takes CPU to be in proportion to the rows (section 3.3). But a micro-batch costs CPU even if all of its rows
are dropped, and a task with spare time runs many small ones. So both costs are fitted over the last cycles, and
remembered for cycles without rows.
"""

from __future__ import annotations

import numpy as np

from treadle.model import Floats

DOUBT = 0.02
"""Ridge on the cost of batches: where rows and batches don't vary, all CPU counts as the cost of rows."""
LEAST = 0.1
"""Least cost of a row, as a share of what it would be if batches cost nothing."""


class Costs:
    """A fit of cpu = b batches + r rows for each task; each cycle multiplies the weight of older cycles by `keep`.

    b and r minimise the sum of (cpu - b batches - r rows)^2 + DOUBT (b batches)^2, and are not negative.
    """

    def __init__(self, tasks: int, *, keep: float = 0.85) -> None:
        self._keep = keep
        self._sums = np.zeros((6, tasks))
        self.per_batch = np.zeros(tasks)
        """CPU seconds per batch, by task."""
        self.per_row = np.zeros(tasks)
        """CPU seconds per row, by task; 0 before the first row."""

    def copy(self, task: int, other: Costs, its: int) -> None:
        """Copy to `task` the fit of the task that has the number `its` in `other`."""
        self._sums[:, task] = other._sums[:, its]
        self.per_batch[task], self.per_row[task] = other.per_batch[its], other.per_row[its]

    def update(self, rows: Floats, batches: Floats, cpu: Floats) -> None:
        """Add a cycle; all three arguments are per second."""
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
