"""How often the counters inside of tasks are read: as often as a small part of a core pays for.

A reading and the decision on it cost some milliseconds for a hundred threads, and ten times that for a thousand. What
they cost on this machine is measured, so the whole stays cheap however large an application is.
"""

from __future__ import annotations

PART = 0.003
"""The part of a core that readings and decisions on them may use. The agent and rounds without news need about twice as
much, and the aim for all of it is a hundredth."""
RECENT = 0.05
"""What a new round counts in the mean."""
STEP = 0.05
"""Seconds. The time between two readings is a multiple of it, so that it does not change with every round."""


class Pace:
    """`least` and `most` are the seconds between two readings."""

    def __init__(self, least: float, most: float) -> None:
        self.period = least
        self._least, self._most = least, most
        self._cost = PART * least

    def add(self, seconds: float) -> None:
        """A round with a new reading has used the CPU for so long."""
        self._cost += RECENT * (seconds - self._cost)
        wanted = min(max(self._cost / PART, self._least), self._most)
        if not self.period - STEP < wanted <= self.period:
            self.period = min(STEP * -(-wanted // STEP), self._most)
