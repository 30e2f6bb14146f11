"""What a micro-batch costs: a fixed part for its tasks, and so much for each row.

Both are fitted to the last batches. Where these do not tell the two apart, because there was one only or all had about
the same rows, all is taken for fixed: then a batch of that size is right, and one of another size is tried sooner.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

LAST = 16
"""Batches that count."""
ALIKE = 0.1
"""Batches whose rows differ by this part of them say little of what a row costs."""


class BatchCosts:
    """Of one query."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, float]] = deque(maxlen=LAST)

    def add(self, rows: float, seconds: float) -> None:
        """A batch had so many rows, and used the CPU for so long."""
        self._batches.append((rows, seconds))

    def fit(self) -> tuple[float, float]:
        """Seconds of the CPU of a batch, and of each of its rows beyond that; NaN while no batch is known."""
        if not self._batches:
            return math.nan, math.nan
        taken, used = np.array(self._batches).T
        away = taken - taken.mean()
        slope = float(away @ used / (away @ away + len(taken) * (ALIKE * taken.mean()) ** 2))
        slope = min(max(slope, 0.0), float(used.mean() / max(taken.mean(), 1.0)))
        return float(used.mean() - slope * taken.mean()), slope
