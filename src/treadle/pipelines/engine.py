"""The hops of a pipeline as an engine of the control loop: their topology, their measures, and the gate as its knob.

It reads counters that the runner keeps and the channels' backlogs; it starts nothing and asks Spark nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treadle.enforce import Knob
from treadle.model import Topology
from treadle.observe import METRICS, plannable
from treadle.pipelines.hop import Hop
from treadle.values import Sample

MEASURES = ("queue", "head_age", "mean_age", "tuples_in", "tuples_out", "busy_time")
"""What is known of each hop, or query of an existing application, in this order."""
OFFERS = frozenset(MEASURES)
ALL_METRICS = frozenset(name for name in METRICS if plannable(name, OFFERS))
"""All that any policy could want, so that one that comes later finds what it needs."""


class HopEngine:
    """`hops` are in the order of the topology's rows."""

    name = "spark"
    offers = OFFERS
    in_process = True

    def __init__(
        self,
        topology: Topology,
        hops: Sequence[Hop],
        knobs: Mapping[str, Knob],
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._topology = topology
        self._hops = tuple(hops)
        self._knobs = dict(knobs)
        self._now = now
        self._before = (time.monotonic(), 0, 0.0)

    def topology(self) -> Topology:
        return self._topology

    def knobs(self) -> Mapping[str, Knob]:
        return self._knobs

    def sample(self, wanted: frozenset[str]) -> Sample:
        now = self._now()
        table = np.array([_measures(hop, now) for hop in self._hops], dtype=np.float64).reshape(-1, len(MEASURES))
        columns = dict(zip(MEASURES, table.T, strict=True))
        return Sample(time.monotonic(), {name: columns[name] for name in wanted & OFFERS}, self._totals())

    def _totals(self) -> dict[str, float]:
        """Of all sinks since the last look: the mean latency of what came out (NaN if nothing did), rows a second."""
        sums = [hop.latency.total for hop in self._hops if hop.latency is not None]
        then, rows, seconds = self._before
        self._before = (time.monotonic(), sum(count for count, _ in sums), sum(total for _, total in sums))
        took, came, waited = (now - before for now, before in zip(self._before, (then, rows, seconds), strict=True))
        return {"latency": waited / came if came else np.nan, "output_rate": came / took if took > 0 else np.nan}


def _measures(hop: Hop, now: float) -> tuple[float, ...]:
    counts = (hop.tuples_in, hop.tuples_out, hop.busy)
    if not hop.inputs:  # what waits outside is not seen
        return (np.nan, np.nan, np.nan, *counts)
    backlogs = [backlog for backlog in hop.backlogs() if backlog.rows]
    rows = sum(backlog.rows for backlog in backlogs)
    if not rows:
        return (0.0, 0.0, 0.0, *counts)
    oldest = min(backlog.oldest for backlog in backlogs)
    mean = sum(backlog.mean * backlog.rows for backlog in backlogs) / rows
    return (rows, max(0.0, now - oldest), max(0.0, now - mean), *counts)
