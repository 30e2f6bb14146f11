"""The hops of a pipeline as an engine of the control loop: their topology, their metrics, and the knobs for them.

It reads the counters of the hops and the backlogs of the channels; it never calls Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treadle.enforce import Knob
from treadle.model import Topology
from treadle.observe import METRICS, plannable
from treadle.pipelines.channels.view import Backlog
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.hops.totals import Totals
from treadle.values import Sample

MEASURES = ("queue", "head_age", "mean_age", "tuples_in", "tuples_out", "cost", "batch_cost", "busy_time", "batches")
"""The metrics that are measured for each hop, or for each query of an existing application, in this order."""
OFFERS = frozenset(MEASURES)
ALL_METRICS = frozenset(name for name in METRICS if plannable(name, OFFERS))
"""All metrics that a policy could need, so that any policy can be set later."""


class HopEngine:
    """The engine of a pipeline. `hops` are in the order of the topology's instances; `lost` is as for `Totals`."""

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
        lost: Callable[[], float] | None = None,
    ) -> None:
        self._topology = topology
        self._hops = tuple(hops)
        self._knobs = dict(knobs)
        self._now = now
        self._totals = Totals(hops, lost)

    def follow(self, topology: Topology, hops: Sequence[Hop]) -> None:
        """Describe other hops from now on. Must not be called while a round runs."""
        self._topology = topology
        self._hops = tuple(hops)
        self._totals.follow(hops)

    def topology(self) -> Topology:
        return self._topology

    def knobs(self) -> Mapping[str, Knob]:
        return self._knobs

    def sample(self, wanted: frozenset[str]) -> Sample:
        now = self._now()
        waiting = [hop.backlogs() for hop in self._hops]
        rows = [_measures(hop, backlogs, now) for hop, backlogs in zip(self._hops, waiting, strict=True)]
        table = np.array(rows, dtype=np.float64).reshape(-1, len(MEASURES))
        columns = dict(zip(MEASURES, table.T, strict=True))
        totals = self._totals.read(now, waiting)
        return Sample(time.monotonic(), {name: columns[name] for name in wanted & OFFERS}, totals)


def _measures(hop: Hop, waiting: Sequence[Backlog], now: float) -> tuple[float, ...]:
    counts = (*hop.flow, hop.cost, hop.batch_cost, hop.busy, hop.batches)
    if not hop.inputs:  # a source: its backlog is outside and unknown
        return (np.nan, np.nan, np.nan, *counts)
    backlogs = [backlog for backlog in waiting if backlog.rows]
    rows = sum(backlog.rows for backlog in backlogs)
    if not rows:
        return (0.0, 0.0, 0.0, *counts)
    oldest = min(backlog.oldest for backlog in backlogs)
    mean = sum(backlog.mean * backlog.rows for backlog in backlogs) / rows
    return (rows, max(0.0, now - oldest), max(0.0, now - mean), *counts)
