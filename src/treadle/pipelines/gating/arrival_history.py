"""Estimates when waiting rows arrived, from samples of the total number of rows."""

from __future__ import annotations

import math
from collections import deque


class ArrivalHistory:
    """Arrival times of rows, interpolated between the last `keep` samples of how many had arrived in total."""

    def __init__(self, keep: int = 1000) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=keep)

    def note(self, at: float, count: float) -> None:
        """Add a sample: `count` rows had arrived by the time `at`. NaN, or a time not after the last, is ignored."""
        if not math.isnan(count) and (not self._seen or at > self._seen[-1][0]):
            self._seen.append((at, count))

    def came(self, row: float) -> float:
        """Arrival time of the row with `row` rows before it; NaN without samples. `row` must never decrease.

        A row that had arrived before the first sample counts as arrived at that sample.
        """
        while len(self._seen) > 1 and self._seen[1][1] <= row:
            self._seen.popleft()
        if not self._seen:
            return math.nan
        start, before = self._seen[0]
        if row <= before or len(self._seen) == 1:
            return start
        end, after = self._seen[1]
        return start + (end - start) * (row - before) / (after - before)

    @property
    def latest(self) -> float:
        """Time of the last sample; NaN without one."""
        return self._seen[-1][0] if self._seen else math.nan
