from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.policies import CongestionAware, Fcfs, HighestRate, Nothing, QueueSize, RoundRobin, Weighted
from treadle.decide.transform import unit
from treadle.errors import ConfigError
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_members_are_brought_to_one_scale_and_mixed_by_weight(line: Line, seen: Seen) -> None:
    snapshot = seen(Topology.of([line(3)]), queue=[0, 50, 100], global_rate=[100, 10, 1])
    schedule = Weighted([(QueueSize(), 3), (HighestRate(), 1)]).decide(snapshot)
    # queues by min-max: 0, 0.5, 1; rates by the min-max of their logarithms: 1, 0.5, 0
    assert schedule.scalar.tolist() == pytest.approx([0.25, 0.5, 0.75])
    assert schedule.spacing == "linear"
    assert schedule.reason == "mix of 3 queue-size + 1 highest-rate"


def test_a_member_that_knows_nothing_of_a_row_leaves_it_to_the_others(line: Line, seen: Seen) -> None:
    snapshot = seen(Topology.of([line(4)]), queue=[0, NAN, 100, NAN], global_rate=[10, 10, 1, NAN])
    schedule = Weighted([(QueueSize(), 0.5), (HighestRate(), 0.5), (Nothing(), 9)]).decide(snapshot)
    assert str(schedule.scalar.tolist()) == "[0.5, 1.0, 0.5, nan]"


@given(st.lists(st.one_of(st.just(NAN), st.just(math.inf), st.floats(0, 1e9)), min_size=1, max_size=8), st.booleans())
def test_a_mix_of_one_is_that_one_on_a_scale_of_0_to_1(line: Line, seen: Seen, values: list[float], log: bool) -> None:
    snapshot = seen(Topology.of([line(len(values))]), queue=values, global_rate=values)
    member = HighestRate() if log else QueueSize()
    alone = member.decide(snapshot)
    mixed = Weighted([(member, 0.3)]).decide(snapshot)
    expected = unit().apply(alone.scalar, alone.spacing)
    assert mixed.scalar.tolist() == pytest.approx(expected.tolist(), nan_ok=True)


def test_helpers_are_on_one_scale_with_the_mains(line: Line, seen: Seen) -> None:
    snapshot = seen(Topology.of([line(2)]), queue=[10, 60], output_queue=[110, 60], head_age=[1, 0])
    schedule = Weighted([(CongestionAware(), 1), (Fcfs(), 1)]).decide(snapshot)
    assert schedule.helper is not None
    assert schedule.scalar.tolist() == pytest.approx([0.5, 0.25])
    assert schedule.helper.tolist() == pytest.approx([1.0, 0.25])


def test_it_needs_what_its_members_need(line: Line) -> None:
    policy = Weighted([(CongestionAware(), 1), (Fcfs(), 1)])
    assert policy.needs == ("queue", "head_age")
    assert policy.wants == ("output_queue", "external_queue")


def test_the_state_is_that_of_its_members(line: Line, seen: Seen) -> None:
    policy, other = (Weighted([(QueueSize(), 1), (RoundRobin(), 1)]) for _ in range(2))
    policy.decide(seen(Topology.of([line(3)]), queue=[1, 2, 3]))
    other.load(json.loads(json.dumps(policy.state())))
    assert other.state() == {"members": [{}, {"turn": 1}]}


@pytest.mark.parametrize("weight", [0.0, -1.0, NAN, math.inf])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match="the weight of 'queue-size' is"):
        Weighted([(QueueSize(), weight)])


def test_a_mix_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no members"):
        Weighted([])


def test_equal_rows_stay_equal(line: Line, seen: Seen) -> None:
    schedule = Weighted([(QueueSize(), 1), (Fcfs(), 2)]).decide(
        seen(Topology.of([line(2)]), queue=[4, 4], head_age=[2, 2])
    )
    assert np.unique(schedule.scalar).tolist() == [0.5]
