"""Earliest deadline first: an operator is the more urgent, the less time its oldest tuple has to the latency goal.

None of the papers has this policy, but all of their users have deadlines.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from treadle.decide.policies.shared.columns import column, head_age, lead, rows_of
from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class MinLatency(Policy):
    """Meets latency goals: by slack = goal - age of the head - work left; queries without a goal follow, oldest first.

    An empty queue counts as a tuple of age 0, so that an operator with a tight goal is ready for the next tuple.
    Unknown work counts as 0, which leaves plain earliest deadline first.
    """

    name: ClassVar[str] = "min-latency"
    aliases: ClassVar[tuple[str, ...]] = ("edf",)
    optimises: ClassVar[str] = "latency goals met"
    paper: ClassVar[str] = "Liu and Layland 1973"
    steady = True
    needs = ("head_age",)
    wants = ("global_cost", "queue", "external_queue")

    def decide(self, snapshot: Snapshot) -> Schedule:
        topology = snapshot.topology
        age, goal = head_age(snapshot), topology.latency_goal
        has_goal = ~np.isnan(goal)
        slack = goal - age - np.nan_to_num(column(snapshot, "global_cost"), nan=0.0)
        urgency = np.where(has_goal, -slack, age)
        reason = (
            "least slack to the latency goal first" if has_goal.any() else "no query has a goal: oldest tuple first"
        )
        reason += lead(topology, -slack, "has {:.3g} s left", shown=slack)
        return Schedule(rows_of(has_goal.astype(np.float64), urgency), reason=reason)
