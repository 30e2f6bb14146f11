"""Chain: low memory by running first what discards most tuples per CPU time (Haren section 7.2, Babcock et al.).

The priorities are slopes of progress charts, from `shared.progress`. Among operators of equal slope the one with the
oldest waiting tuple goes first: Haren's second dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from treadle.decide.policies.shared.columns import column, head_age, lead
from treadle.decide.policies.shared.progress import Envelope, Plan, plan_of
from treadle.decide.policy import Policy
from treadle.model import Bools, Floats, Topology
from treadle.values import Schedule, Snapshot


@dataclass(frozen=True, slots=True)
class Segment:
    """A chain: instances (`rows`) that run one after the other and free `slope` tuples per second of CPU.

    `cost` (CPU seconds) and `freed` (tuples) are for one tuple that enters the first instance.
    """

    rows: tuple[int, ...]
    slope: float
    cost: float
    freed: float


class Chain(Policy):
    """Frees memory fastest: the steepest segment of the lower envelope first, then the oldest head."""

    name: ClassVar[str] = "chain"
    optimises: ClassVar[str] = "memory"
    paper: ClassVar[str] = "Haren 7.2; Babcock et al. 2003"
    steady = True
    needs = ("cost", "selectivity")
    wants = ("head_age", "queue", "external_queue", "next_cost")

    def __init__(self) -> None:
        self._drawn: tuple[Topology, Plan] | None = None
        self._outside: set[str] = set()

    def decide(self, snapshot: Snapshot) -> Schedule:
        topology = snapshot.topology
        cost = snapshot["next_cost" if "next_cost" in snapshot else "cost"]
        outside = self._read_from_outside(snapshot)
        slope, _ = Envelope(self._plan(topology), np.where(outside, np.nan, cost), snapshot["selectivity"]).slopes()
        slope[outside] = 0.0
        reason = "steepest chain first" + lead(topology, slope, "frees {:.3g} tuples per CPU second")
        if "head_age" not in snapshot:
            return Schedule(slope, spacing="log", reason=reason)
        age = np.nan_to_num(head_age(snapshot), nan=0.0)
        return Schedule(np.column_stack([slope, np.where(np.isnan(slope), np.nan, age)]), reason=reason)

    def state(self) -> dict[str, Any]:
        return {"outside": sorted(self._outside)}

    def load(self, state: dict[str, Any]) -> None:
        self._outside = set(state["outside"])

    def _plan(self, topology: Topology) -> Plan:
        """Return the plan of a topology, computed once for each topology."""
        if self._drawn is None or self._drawn[0] is not topology:
            self._drawn = (topology, plan_of(topology))
            self._outside &= set(topology.ids)
        return self._drawn[1]

    def _read_from_outside(self, snapshot: Snapshot) -> Bools:
        """Return a mask of the sources whose tuples wait outside of the engine, where they take none of its memory.

        Such sources free nothing: the tuples that they read are in memory only from then on. So they come last, and
        their consumers begin chains of their own. A source that was found once stays in the mask, even while no tuple
        waits.
        """
        topology = snapshot.topology
        candidates = topology.is_source & ~topology.is_sink
        waiting = column(snapshot, "external_queue") > np.nan_to_num(column(snapshot, "queue"))
        self._outside |= {topology.ids[row] for row in np.flatnonzero(candidates & waiting)}
        if not self._outside:
            return np.zeros(len(topology), dtype=np.bool_)
        rows = [row for row in np.flatnonzero(candidates).tolist() if topology.ids[row] in self._outside]
        found = np.zeros(len(topology), dtype=np.bool_)
        found[rows] = True
        return found


def segments(topology: Topology, cost: Floats, selectivity: Floats) -> list[Segment]:
    """Return the chains of a topology, steepest first. A join may be in several; rows of unknown slope are in none."""
    envelope = Envelope(plan_of(topology), cost, selectivity)
    _, is_head = envelope.slopes()
    heads = np.flatnonzero(is_head & ~np.isnan(envelope.slope))
    found = [
        Segment(
            envelope.members(row), float(envelope.slope[row]), float(envelope.cost[row]), float(envelope.freed[row])
        )
        for row in heads.tolist()
    ]
    return sorted(found, key=lambda segment: -segment.slope)
