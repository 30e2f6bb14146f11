"""The objectives of a whole running pipeline, such as latency, throughput, memory and missed goals, as one number each.

These are the objectives of AMoS section 3.2, measured live from the counters and backlogs of the hops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from treadle.pipelines.channels.view import Backlog
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.hops.latency import Part, summarise

WINDOW = 2.0
"""Percentiles and missed goals count the rows that left the sinks in these last seconds."""
PAUSE = 0.5
"""Seconds between two computations of percentiles and missed goals."""
OBJECTIVES = (
    *("latency", "latency_p99", "output_rate", "total_queue", "queue_variance", "backlog_bytes", "goals_missed"),
    "accuracy_lost",
)
"""All objectives. `total_queue` and `queue_variance` are computed by `observe.provider`, not here."""

Waiting = Sequence[Sequence[Backlog]]
"""By hop: the backlog of each of its inputs."""


class Totals:
    """The objectives of a run. `lost` returns the mean share of the input that was dropped before the sinks."""

    def __init__(self, hops: Sequence[Hop], lost: Callable[[], float] | None = None) -> None:
        self._hops = tuple(hops)
        self._lost = lost
        self._ended = (0, 0.0)
        """Rows and seconds of the sinks that have ended."""
        self._before = (time.monotonic(), 0, 0.0)
        self._looked = -np.inf
        self._late: dict[str, float] = {}

    def follow(self, hops: Sequence[Hop]) -> None:
        """Measure other hops from now on. What hops that are no longer among them have done still counts."""
        gone = [hop.latency.total for hop in set(self._hops) - set(hops) if hop.latency is not None]
        new = [hop.latency.total for hop in set(hops) - set(self._hops) if hop.latency is not None]
        rows, seconds = self._ended
        rows += sum(rows for rows, _ in gone) - sum(rows for rows, _ in new)
        seconds += sum(seconds for _, seconds in gone) - sum(seconds for _, seconds in new)
        self._ended, self._hops = (rows, seconds), tuple(hops)

    def read(self, now: float, waiting: Waiting) -> dict[str, float]:
        """Return the objectives. Mean latency (NaN without rows) and output rate are over the time since the last call.

        The other objectives are current values.
        """
        sums = [self._ended, *(hop.latency.total for hop in self._hops if hop.latency is not None)]
        then, rows, seconds = self._before
        self._before = (time.monotonic(), sum(count for count, _ in sums), sum(total for _, total in sums))
        took, came, waited = (new - old for new, old in zip(self._before, (then, rows, seconds), strict=True))
        if self._before[0] - self._looked >= PAUSE:
            self._looked = self._before[0]
            self._late = self._lateness(now, waiting)
        found = {
            "latency": waited / came if came else np.nan,
            "output_rate": came / took if took > 0 else np.nan,
            "backlog_bytes": float(sum(backlog.bytes for each in waiting for backlog in each)),
            **self._late,
        }
        return found if self._lost is None else {**found, "accuracy_lost": self._lost()}

    def _lateness(self, now: float, waiting: Waiting) -> dict[str, float]:
        """Return p99 latency and the share of missed goals, of recent output rows and of waiting rows.

        Waiting rows count with their present age, so that a policy that starves a hop is noticed. A row that waits for
        several hops counts once for each of them.
        """
        parts: list[Part] = []
        missed = bound = 0.0
        for hop, backlogs in zip(self._hops, waiting, strict=True):
            mine = [
                Part(now, each.rows, max(0.0, now - each.oldest), max(0.0, now - each.mean))
                for each in backlogs
                if each.rows
            ]
            if hop.latency is not None:
                mine += hop.latency.parts(now - WINDOW)
            parts += mine
            if np.isfinite(hop.latency_goal):
                bound += sum(part.rows for part in mine)
                missed += sum(part.rows * older_than(part, hop.latency_goal) for part in mine)
        return {"latency_p99": summarise(parts).p99, "goals_missed": missed / bound if bound else 0.0}


def older_than(part: Part, age: float) -> float:
    """The share of a part's rows that are older than `age` (seconds), assuming that ages are uniformly distributed."""
    youngest = max(2.0 * part.mean - part.oldest, 0.0)
    if part.oldest <= age or youngest >= age:
        return float(part.oldest > age)
    return (part.oldest - age) / (part.oldest - youngest)
