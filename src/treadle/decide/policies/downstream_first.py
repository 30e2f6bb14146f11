"""Downstream-first: operators nearer to the sink go first, so that what was begun is finished before more is read.

It uses the graph alone and no metric, so it holds from the first round on. On one core it keeps few rows inside a
query, and so their latency is low.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from treadle.decide.policy import Policy
from treadle.model import Floats, Topology
from treadle.values import Schedule, Snapshot


class DownstreamFirst(Policy):
    """Finishes what was begun: the sinks first, then the operators that feed them, the sources last.

    In each query sinks have priority 1 and the farthest sources 0, with even steps along the longest path in between. A
    query of one level gets no priorities. Helper threads are left unchanged: an urgent helper would wake up for each
    small piece of data from its main thread, and moving many small pieces costs more than it gains.
    """

    name: ClassVar[str] = "downstream-first"
    aliases: ClassVar[tuple[str, ...]] = ("sink-first",)
    optimises: ClassVar[str] = "latency of each query"
    paper: ClassVar[str] = "none: Treadle's own"
    steady = True

    def __init__(self) -> None:
        self._decided: tuple[Topology, Schedule] | None = None

    def decide(self, snapshot: Snapshot) -> Schedule:
        topology = snapshot.topology
        if self._decided is None or self._decided[0] is not topology:
            nearness = _nearness(topology)
            left = np.full(len(nearness), np.nan)
            self._decided = topology, Schedule(nearness, helper=left, reason="nearest to the result first")
        return self._decided[1]


def _nearness(topology: Topology) -> Floats:
    away = np.zeros(len(topology))
    for distance, level in enumerate(topology.levels):
        away[level.rows] = distance
    longest = np.zeros(len(topology.queries))
    np.maximum.at(longest, topology.query_of, away)
    longest[longest == 0.0] = np.nan
    return 1.0 - away / longest[topology.query_of]
