"""Limits how many micro-batches of an application run at once, and how soon a query begins its next one.

A batch that waits for its turn has not read its rows yet, so it reads all that arrive meanwhile, and each batch runs on
less divided cores. The agent grants the turns (`BatchTurns.java`), by the same order as the tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from treadle.control.settings import Setting
from treadle.engines.spark.agent.agents import NO_TURNS
from treadle.engines.spark.counters.batches import BatchReading
from treadle.engines.spark.engine import SparkEngine
from treadle.errors import ConfigError

Slots = int | Literal["auto"] | None
NONE = "none"
"""No limit, in settings."""
MOST = 10_000
"""The maximum number of slots."""
WINDOW = 10.0
"""Seconds over which the rows of a query are counted."""
LEAST_LEFT = 0.05
"""The minimum share of the cores that is assumed to be left for the fixed costs of batches."""
LONGEST = 5.0
"""Maximum seconds between the beginnings of two batches of a query while others wait."""


def checked(slots: object) -> Slots:
    """Return a number of slots, "auto", or None for no limit; anything else raises a ConfigError."""
    if (
        slots is None
        or slots == "auto"
        or (isinstance(slots, int) and not isinstance(slots, bool) and 0 < slots <= MOST)
    ):
        return slots
    remedy = f"use 'auto' (one for each core), a whole number from 1 to {MOST}, or none"
    raise ConfigError(f"slots can't be {slots!r}", where="attach", remedy=remedy)


def setting(read: Callable[[], Slots], put: Callable[[Slots], None], agent: bool | None) -> Setting:
    """The setting `slots` of an attachment, which loads an agent unless `agent` is False."""

    def prepare(given: object) -> Callable[[], None]:
        count = checked(None if given == NONE else given)
        if count is not None and agent is False:
            raise ConfigError("only an agent can hold batches back", where="attach", remedy="attach without --no-agent")
        return partial(put, count)

    return Setting(lambda: read() or NONE, prepare, lambda given: given or NONE)


class BatchTurns:
    """The turns of one application, which may use so many cores."""

    def __init__(self, engine: SparkEngine, cores: float) -> None:
        self._engine, self._cores = engine, cores
        self._seen: deque[tuple[float, dict[str, float]]] = deque()
        """Time and rows read so far by each query, over the last `WINDOW` seconds."""
        self._spacing = 0.0

    def update(self, slots: Slots) -> None:
        """Set the turns after a round."""
        agents, readings = self._engine.agents, self._engine.batches
        if slots is None:
            agents.turns = NO_TURNS
            return
        if readings and not (self._seen and self._seen[-1][0] == self._engine.counted_at):
            self._follow(self._engine.counted_at, readings)
            self._spacing = round(self._spacing_of(readings), 1)
        count = max(1, round(self._cores)) if slots == "auto" else slots
        agents.turns = (count, self._spacing if readings else 0.0)

    def _follow(self, now: float, readings: Mapping[str, BatchReading]) -> None:
        self._seen.append((now, {run: each.tuples_in for run, each in readings.items()}))
        while now - self._seen[0][0] > WINDOW:
            self._seen.popleft()

    def _spacing_of(self, readings: Mapping[str, BatchReading]) -> float:
        """Return the seconds in which the cores can run one batch of each query beside the work for the rows."""
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        rows = {run: after[run] - before[run] for run in readings if run in before and after[run] > before[run]}
        known = [run for run in rows if readings[run].cost >= 0 and readings[run].batch_cost >= 0]
        if not known or end - start < WINDOW / 2:
            return 0.0
        work = sum(rows[run] * readings[run].cost for run in known) / (end - start)
        fixed = sum(readings[run].batch_cost for run in known)
        return min(LONGEST, fixed / max(self._cores - work, LEAST_LEFT * self._cores))
