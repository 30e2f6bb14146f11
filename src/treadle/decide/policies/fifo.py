"""FIFO: the tuple that arrived first is pushed through the whole plan first (AMoS section 2.1, Table 1)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from treadle.decide.policies.shared.columns import head_age, hops_to_sink, is_empty, lead, rows_of
from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class Fifo(Policy):
    """Runs the operator with the oldest tuple first; of equal ages, the one nearest to the sink.

    So a tuple that was begun is finished before others of its age. An empty queue comes last, also behind a tuple of
    age 0.
    """

    name: ClassVar[str] = "fifo"
    optimises: ClassVar[str] = "latency, a steady output"
    paper: ClassVar[str] = "AMoS 2.1"
    steady = True
    needs = ("head_age",)
    wants = ("queue", "external_queue")

    def decide(self, snapshot: Snapshot) -> Schedule:
        topology = snapshot.topology
        age = head_age(snapshot)
        nearness = np.where(is_empty(snapshot), -float(len(topology.levels)), -hops_to_sink(topology))
        reason = "oldest tuple first, through the whole plan" + lead(topology, age, "holds one {:.3g} s old")
        return Schedule(rows_of(age, nearness), reason=reason)
