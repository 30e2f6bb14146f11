"""Input rate of a source, from the rows taken and the rows still waiting (Stream-Economics section 6).

The paper adds the variation of the lag to the rate of consumption. Both are differences of the same two counters, so
their sum is the growth of taken + waiting. It is computed here directly: rounding and sampling errors cancel.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Rate(NamedTuple):
    """Rows per second that arrived, and that were taken."""

    arriving: float
    taken: float


class InputRate:
    """The rates of one source over the last `window` seconds, known from the second sample on."""

    def __init__(self, window: float = 5.0) -> None:
        self._window = window
        self._looks: deque[tuple[float, float, float]] = deque()

    def update(self, time: float, taken: float, waiting: float) -> Rate | None:
        """Add a sample: rows taken so far, and rows that wait now. A counter that falls starts a new window."""
        looks = self._looks
        if looks and (taken < looks[-1][1] or time <= looks[-1][0]):
            looks.clear()
        looks.append((time, taken, taken + waiting))
        while len(looks) > 2 and looks[1][0] <= time - self._window:
            looks.popleft()
        if len(looks) < 2:
            return None
        passed = time - looks[0][0]
        return Rate(max(0.0, looks[-1][2] - looks[0][2]) / passed, (taken - looks[0][1]) / passed)
