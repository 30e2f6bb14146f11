"""How old the rows are that wait, from how many had come when somebody looked."""

from __future__ import annotations

import math
from collections import deque


class ArrivalHistory:
    """When rows came, from the number that had come in all at some moments; between two they came evenly."""

    def __init__(self, keep: int = 1000) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=keep)

    def note(self, at: float, count: float) -> None:
        """So many had come by then. What is unknown, or not newer than what is known, is left out."""
        if not math.isnan(count) and (not self._seen or at > self._seen[-1][0]):
            self._seen.append((at, count))

    def came(self, row: float) -> float:
        """When the row came that has so many before it; asked for ever later rows. NaN if nothing was ever seen.

        One that was there when the first look was taken counts from that look.
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
        """When somebody last looked."""
        return self._seen[-1][0] if self._seen else math.nan
