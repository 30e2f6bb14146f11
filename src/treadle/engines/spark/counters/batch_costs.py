"""The cost of a micro-batch: a fixed part per batch, and a part per row.

Both are fitted to the last batches. If there was only one batch, or all had about the same number of rows, the parts
can't be separated, and the whole cost counts as fixed. That is right for a batch of this size. The rows of a larger
backlog seem cheaper, so a batch of another size runs sooner, and the parts become known.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

LAST = 16
"""Number of recent batches to which costs are fitted."""
ALIKE = 0.1
"""Batches whose rows differ by less than this share say little about the cost of a row."""


class BatchCosts:
    """The rows and CPU seconds of one query's last `LAST` batches."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, float]] = deque(maxlen=LAST)

    def add(self, rows: float, seconds: float) -> None:
        """Add a batch with its rows and CPU seconds."""
        self._batches.append((rows, seconds))

    def fit(self) -> tuple[float, float]:
        """Return the CPU seconds per batch, and per row in addition; NaN while no batch is known."""
        if not self._batches:
            return math.nan, math.nan
        taken, used = np.array(self._batches).T
        away = taken - taken.mean()
        slope = float(away @ used / (away @ away + len(taken) * (ALIKE * taken.mean()) ** 2))
        slope = min(max(slope, 0.0), float(used.mean() / max(taken.mean(), 1.0)))
        return float(used.mean() - slope * taken.mean()), slope
