"""FCFS: the operator with the oldest waiting tuple goes first, for the least maximum latency (Haren section 7.2)."""

from __future__ import annotations

from typing import ClassVar

from treadle.decide.policies.shared.columns import head_age, lead
from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class Fcfs(Policy):
    """Serves the oldest head first; an empty queue comes last, with age 0."""

    name: ClassVar[str] = "fcfs"
    optimises: ClassVar[str] = "maximum latency"
    paper: ClassVar[str] = "Lachesis 5.1; Haren 7.2"
    steady = True
    needs = ("head_age",)
    wants = ("queue", "external_queue")

    def decide(self, snapshot: Snapshot) -> Schedule:
        age = head_age(snapshot)
        return Schedule(age, reason="oldest tuple first" + lead(snapshot.topology, age, "holds one {:.3g} s old"))
