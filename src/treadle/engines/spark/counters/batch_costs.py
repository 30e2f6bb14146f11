"""The cost of a micro-batch: a fixed part per batch, and a part per row.

Both are fitted to the last batches. If these can't separate the parts, because there was only one batch or all had
about as many rows, the whole cost counts as fixed: that is right for a batch of that size, and another size is tried
sooner.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

LAST = 16
"""Batches that are fitted."""
ALIKE = 0.1
"""Batches whose rows differ by less than this share say little about the cost of a row."""


class BatchCosts:
    """Costs of one query's batches."""

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
