"""How many slots: more while hops wait and the CPU has room, fewer when more run than there are cores and they stall.

It knows a gate and two shares, not where those come from. Haren section 8 leaves the number of threads to future work.
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
"""Below this busy share there is room for one more."""
STALLED = 0.6
"""From this stall share on, one fewer is better: tasks waited for a core for more than half of the time."""
FULL = 0.98
"""From this busy share on cores count as stalled where the stall share is unknown."""
QUEUE = 0.5
"""Hops that must have waited on average for one more slot to be of use."""
AGREE = 2
"""Looks in a row that must say the same."""
CALM = 10
"""Looks after a change before one in the other direction."""


class Gauge(Protocol):
    """Measures the CPU since it was last asked: the busy share and the stall share; NaN is unknown."""

    def sample(self) -> tuple[float, float]: ...


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def starting_slots(slots: int | Literal["auto"]) -> int:
    """The slots to begin with: as asked, or with "auto" two for each usable core.

    A batch is on a core for hardly more than half of its time: the rest it is handed from thread to thread.
    """
    return 2 * usable_cores() if slots == "auto" else slots


class Elastic:
    """Moves the slots of a gate between `low` and `high`, by one at a time.

    Call `step` as often as you like: it looks once a `period`. It never goes below `low` nor, since a core without a
    hop is lost, below `cores` by itself; `high` is twice the cores unless told.
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
        """Look, if it is time; the change of the slots: 1, 0 or -1."""
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
        """The direction that one look asks for. What is unknown asks for nothing."""
        slots = self.gate.slots
        if queue >= QUEUE and busy < ROOMY and slots < self.high:
            return 1
        stalled = busy >= FULL if math.isnan(stall) else stall >= STALLED and not busy < ROOMY
        return -1 if stalled and slots > max(self.low, self.cores) else 0

    def _agreed(self, vote: int) -> int:
        """The vote, once enough looks in a row say the same and the last move the other way is long enough ago."""
        self._votes = self._votes + 1 if vote == self._vote else 1
        self._vote = vote
        calm = vote != -self._moved or self._since >= CALM
        return vote if self._votes >= AGREE and calm else 0
