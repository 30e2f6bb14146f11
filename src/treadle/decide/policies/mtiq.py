"""MTIQ, most tuples in queue: the longest queue first, for few tuples and few switches (AMoS section 2.1, Table 2)."""

from __future__ import annotations

from typing import ClassVar

from treadle.decide.policies.shared.columns import hops_to_sink, lead, rows_of
from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class Mtiq(Policy):
    """Runs the longest queue; of equal ones the farthest from the sink, as the paper does in Table 2 at t = 3.75."""

    name: ClassVar[str] = "mtiq"
    optimises: ClassVar[str] = "total queue size"
    paper: ClassVar[str] = "AMoS 2.1"
    steady = True
    needs = ("queue",)

    def decide(self, snapshot: Snapshot) -> Schedule:
        queue = snapshot["queue"]
        reason = "most tuples in queue first, then upstream" + lead(snapshot.topology, queue, "has {:.6g} tuples")
        return Schedule(rows_of(queue, hops_to_sink(snapshot.topology)), reason=reason)
