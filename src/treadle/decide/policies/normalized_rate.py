"""HNR, highest normalised rate: HR made fair to short queries, for the least mean slowdown (Sharaf et al. 2008).

The slowdown of a result is its latency in units of T, the time its tuple would take on an idle machine. To keep the
mean slowdown low, an operator's output rate is divided by the T of its results: HNR = S / (C * T) = HR / T.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from treadle.decide.policies.shared.columns import lead
from treadle.decide.policy import Policy
from treadle.model import Floats, Topology
from treadle.values import Schedule, Snapshot


class NormalizedRate(Policy):
    """Runs first what yields most results per CPU second, divided by the CPU time that a result takes in all."""

    name: ClassVar[str] = "normalized-rate"
    aliases: ClassVar[tuple[str, ...]] = ("hnr", "normalised-rate")
    optimises: ClassVar[str] = "mean slowdown (stretch)"
    paper: ClassVar[str] = "Sharaf et al. 2008"
    steady = True
    needs = ("global_rate", "cost")

    def decide(self, snapshot: Snapshot) -> Schedule:
        rate, ideal = snapshot["global_rate"], ideal_time(snapshot.topology, snapshot["cost"])
        with np.errstate(all="ignore"):
            normalised = np.where(rate == 0, np.where(np.isnan(ideal), np.nan, 0.0), rate / ideal)
        says = lead(snapshot.topology, normalised, "leads with {:.3g}")
        return Schedule(normalised, spacing="log", reason="highest output rate per ideal time first" + says)


def ideal_time(topology: Topology, cost: Floats) -> Floats:
    """Return T: the CPU time of a tuple that passes the whole plan, on the most expensive path over each row.

    The tuple is not discarded, so selectivities don't count. In a chain T is the same for all operators of a query.
    """
    to_sink, from_source = np.zeros(len(topology)), np.zeros(len(topology))  # without this row's own cost
    with np.errstate(invalid="ignore"):  # the maximum with an unknown is unknown
        for level in topology.levels:
            start, end = level.rows[level.edge_from], level.edge_to
            np.maximum.at(to_sink, start, to_sink[end] + cost[end])
        for level in reversed(topology.levels):
            start, end = level.rows[level.edge_from], level.edge_to
            np.maximum.at(from_source, end, from_source[start] + cost[start])
    return from_source + cost + to_sink
