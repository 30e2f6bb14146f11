"""Sets how often the counters inside of tasks are read, so that reading them takes a fixed small share of a core.

A reading and the decision on it cost some milliseconds for a hundred threads, and ten times that for a thousand. Their
cost on this machine is measured, so the overhead stays small however large an application is.
"""

from __future__ import annotations

PART = 0.003
"""The share of a core that readings and decisions on them may use. The agent and rounds without news need about twice
as much, and the target for everything together is 0.01."""
RECENT = 0.05
"""The weight of a new round's cost in the running average of the cost."""
STEP = 0.05
"""Seconds. The time between two readings is a multiple of it, so that it does not change with every round."""


class Pace:
    """The `period` between two readings, from `least` to `most` seconds."""

    def __init__(self, least: float, most: float) -> None:
        self.period = least
        self._least, self._most = least, most
        self._cost = PART * least

    def add(self, seconds: float) -> None:
        """Add the CPU seconds of a round with a new reading, and adapt the period."""
        self._cost += RECENT * (seconds - self._cost)
        wanted = min(max(self._cost / PART, self._least), self._most)
        if not self.period - STEP < wanted <= self.period:
            self.period = min(STEP * -(-wanted // STEP), self._most)
