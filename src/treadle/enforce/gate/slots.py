"""Adapts the number of slots: more while hops wait and cores are idle, fewer while runnable tasks wait for cores.

Its input is a gate and two shares of time: cores were busy, and tasks stalled, which means that they waited for a core.
Haren section 8 leaves the number of threads to future work.
"""

from __future__ import annotations

import logging
import math
import os
import time
from typing import Literal, Protocol

from treadle.enforce.gate.gate import Gate, Now
from treadle.errors import ConfigError

log = logging.getLogger("treadle.gate")

ROOMY = 0.85
"""Busy share of the cores below which a slot may be added."""
STALLED = 0.6
"""Stall share from which on a slot is removed: tasks waited for a core for more than half of the time."""
FULL = 0.98
"""Busy share from which on a slot is removed if the stall share is unknown."""
QUEUE = 0.5
"""A slot is added only if at least this many hops waited on average."""
AGREE = 2
"""Number of samples in a row that must ask for the same change before it is made."""
CALM = 10
"""Number of samples that must follow a change before the opposite change is made."""


class Gauge(Protocol):
    """Measures the busy share and the stall share of the CPU since the last sample; NaN is unknown."""

    def sample(self) -> tuple[float, float]: ...


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def starting_slots(slots: int | Literal["auto"]) -> int:
    """Return the initial number of slots: as given, or with "auto" two for each usable core.

    A batch is on a core for hardly more than half of its time; in the rest it is handed from thread to thread.
    """
    return 2 * usable_cores() if slots == "auto" else slots


class Elastic:
    """Changes the number of slots of a gate between `low` and `high`, by one at a time.

    `step` may be called at any rate: it samples once every `period` seconds. It never lowers the number below `low` or
    below `cores`, since a core without a hop is wasted. `high` is twice `cores` by default.
    """

    def __init__(
        self,
        gate: Gate,
        pressure: Gauge,
        *,
        low: int = 1,
        high: int | None = None,
        period: float = 1.0,
        cores: int | None = None,
        now: Now = time.monotonic,
    ) -> None:
        self.cores = usable_cores() if cores is None else cores
        self.low = low
        self.high = max(low, 2 * self.cores) if high is None else high
        if not 1 <= self.low <= self.high:
            remedy = "use 1 or more, and low not above high"
            raise ConfigError(f"slots can't be between {low} and {high}", where="elastic slots", remedy=remedy)
        if not 0 < period < math.inf:
            raise ConfigError(f"its period can't be {period}", where="elastic slots", remedy="use seconds above 0")
        self.gate = gate
        self.period = period
        self._pressure = pressure
        self._now = now
        self._looked = now()
        self._waited = gate.stats.waited
        self._vote = 0
        self._votes = 0
        self._moved = 0
        self._since = CALM
        gate.slots = min(max(gate.slots, self.low), self.high)

    def step(self) -> int:
        """Take a sample if a period has passed; return the change of the number of slots: 1, 0 or -1."""
        now = self._now()
        passed = now - self._looked
        if passed < self.period:
            return 0
        waited = self.gate.stats.waited
        queue = (waited - self._waited) / passed
        self._looked, self._waited = now, waited
        busy, stall = self._pressure.sample()
        self._since += 1
        move = self._agreed(self._wanted(queue, busy, stall))
        if move:
            self._vote = self._votes = self._since = 0
            self._moved = move
            self.gate.slots += move
            log.info(
                "slots to %d: %.1f hops waited, cores %.0f %% busy, stalled %.0f %% of the time",
                *(self.gate.slots, queue, 100 * busy, 100 * stall),
                extra={"slots": self.gate.slots, "queue": queue, "busy": busy, "stall": stall},
            )
        return move

    def _wanted(self, queue: float, busy: float, stall: float) -> int:
        """Return the direction that one sample asks for: 1, 0 or -1."""
        slots = self.gate.slots
        if queue >= QUEUE and busy < ROOMY and slots < self.high:
            return 1
        stalled = busy >= FULL if math.isnan(stall) else stall >= STALLED and not busy < ROOMY
        return -1 if stalled and slots > max(self.low, self.cores) else 0

    def _agreed(self, vote: int) -> int:
        """Return the vote if enough samples in a row agree and the last opposite change is long enough ago, else 0."""
        self._votes = self._votes + 1 if vote == self._vote else 1
        self._vote = vote
        calm = vote != -self._moved or self._since >= CALM
        return vote if self._votes >= AGREE and calm else 0
