from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.policies import Chain, CongestionAware, Fifo, HighestRate, MultiClass, QueueSize, RoundRobin
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


HIGH, LOW = 1.0, 0.0


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100), st.floats(0, 1e6)), min_size=1, max_size=13))
def test_high_always_comes_before_low_fcfs_within_high_and_hr_within_low(
    line: Line, seen: Seen, queries: list[tuple[bool, float, float]]
) -> None:
    """Haren section 7.4, objectives 1 to 3. If all queries are of one class, that one is the highest."""
    topology = Topology.of([line(1, f"q{i}", HIGH if high else LOW) for i, (high, _, _) in enumerate(queries)])
    age, rate = [age for _, age, _ in queries], [rate for _, _, rate in queries]
    order = MultiClass().decide(seen(topology, head_age=age, global_rate=rate)).scalar
    highest = max(high for high, _, _ in queries)
    for a, b in np.ndindex(len(queries), len(queries)):
        if queries[a][0] != queries[b][0]:
            assert (order[a] > order[b]) == queries[a][0]
        else:
            metric = age if queries[a][0] == highest else rate
            assert (order[a] > order[b]) == (metric[a] > metric[b])


def test_hundred_low_tuples_of_any_age_do_not_overtake_a_fresh_high_one(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, "high", HIGH), line(1, "low", LOW)])
    schedule = MultiClass().decide(seen(topology, head_age=[0.001, 500], global_rate=[0.1, 1e9]))
    assert schedule.priority.tolist() == [[1, 0.001], [0, 1e9]]
    assert schedule.reason == "class 1 by fcfs; class 0 by highest-rate"


def test_inner_vectors_are_filled_up_to_one_width(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(2, "high", HIGH), line(1, "low", LOW)])
    policy = MultiClass(high=Fifo(), low=QueueSize())
    schedule = policy.decide(seen(topology, head_age=[2, 2, 9], queue=[1, 1, 50]))
    assert schedule.priority.tolist() == [[1, 2, -1], [1, 2, 0], [0, 50, 0]]
    assert policy.needs == ("head_age", "queue")
    assert policy.wants == ("external_queue",)


def test_a_class_may_have_a_policy_of_its_own(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, "p", 3), line(1, "q", 2), line(1, "r", 1)])
    policy = MultiClass(classes={2: QueueSize()})
    schedule = policy.decide(seen(topology, head_age=[7, 8, 9], global_rate=[0.1, 0.2, 0.3], queue=[4, 5, 6]))
    assert schedule.priority.tolist() == [[3, 7], [2, 5], [1, 0.3]]


def test_what_is_unknown_inside_is_unknown_as_a_whole_and_alone(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(2, "high", HIGH), line(1, "low", LOW)])
    schedule = MultiClass().decide(seen(topology, head_age=[NAN, 1, NAN], global_rate=[1, 1, 1]))
    assert np.isnan(schedule.priority).tolist() == [[True, True], [False, False], [False, False]]


def test_helpers_follow_the_policy_of_their_class(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, "high", HIGH), line(1, "low", LOW)])
    policy = MultiClass(high=CongestionAware(), low=HighestRate())
    schedule = policy.decide(seen(topology, queue=[1, 2], output_queue=[70, 80], global_rate=[5, 6]))
    assert schedule.helper is not None
    # mains (1, 1) and (0, 6), helpers (1, 70) and, following its main, (0, 6): one order of all
    assert schedule.scalar.tolist() == [1, 0]
    assert schedule.helper.tolist() == [2, 0]


def test_one_policy_for_two_classes_decides_once(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, "p", 3), line(1, "q", 2), line(1, "r", 1)])
    policy = MultiClass(low=RoundRobin(), high=Chain())
    policy.decide(seen(topology, cost=[1, 1, 1], selectivity=[1, 1, 1]))
    assert policy.state()["low"] == {"turn": 1}
    other = MultiClass(low=RoundRobin(), high=Chain())
    other.load(policy.state())
    assert other.state() == policy.state()
