"""QS: the operator with most waiting tuples goes first, which balances the queues (Lachesis section 5.1, EdgeWise)."""

from __future__ import annotations

from typing import ClassVar

from treadle.decide.policies.shared.columns import lead
from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class QueueSize(Policy):
    """Balances queues: the more tuples wait, the more urgent."""

    name: ClassVar[str] = "queue-size"
    aliases: ClassVar[tuple[str, ...]] = ("qs",)
    optimises: ClassVar[str] = "throughput"
    paper: ClassVar[str] = "Lachesis 5.1"
    steady = True
    needs = ("queue",)

    def decide(self, snapshot: Snapshot) -> Schedule:
        queue = snapshot["queue"]
        return Schedule(queue, reason="longest queue first" + lead(snapshot.topology, queue, "has {:.6g} tuples"))
