from __future__ import annotations

from collections.abc import Callable

import numpy as np

from treadle.decide.policies import MinLatency
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_the_least_slack_goes_first(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, "p", goal=1.0), line(1, "q", goal=5.0), line(1, "r", goal=2.0)])
    schedule = MinLatency().decide(seen(topology, head_age=[0.1, 4.75, 0.5], global_cost=[0.2, 0.5, 0.0]))
    assert (-schedule.priority[:, 1]).round(9).tolist() == [0.7, -0.25, 1.5]
    assert schedule.reason == "least slack to the latency goal first; q.a[0] has -0.25 s left"


def test_queries_without_a_goal_follow_all_others_oldest_first(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, "p"), line(1, "q", goal=100.0), line(1, "r")])
    schedule = MinLatency().decide(seen(topology, head_age=[3, 0, 8]))
    assert np.argsort(-schedule.scalar).tolist() == [1, 2, 0]


def test_work_that_is_unknown_counts_nothing_and_an_empty_queue_is_of_age_0(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(3, "p", goal=2.0)])
    snapshot = seen(topology, head_age=[1, NAN, NAN], queue=[1, 0, 3], global_cost=[NAN, 0.5, 0.5])
    assert str(MinLatency().decide(snapshot).priority.tolist()) == "[[1.0, -1.0], [1.0, -1.5], [nan, nan]]"


def test_without_any_goal_it_says_so(line: Line, seen: Seen) -> None:
    schedule = MinLatency().decide(seen(Topology.of([line(2)]), head_age=[1, 2]))
    assert schedule.reason == "no query has a goal: oldest tuple first"
