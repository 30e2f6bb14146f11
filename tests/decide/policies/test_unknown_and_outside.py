"""Chains of sources that read from outside, costs of the next tuple, and rows of which something is unknown."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from treadle.decide.policies import (
    Chain,
    CongestionAware,
    DownstreamFirst,
    NormalizedRate,
    QueueSize,
    RoundRobin,
    UserPriority,
    Weighted,
)
from treadle.errors import ConfigError
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = math.nan
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_behind_a_source_that_reads_from_outside_chains_begin_anew(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(3)])
    columns = {"cost": [1.0, 1.0, 4.0], "selectivity": [1.0, 0.1, 1.0]}
    inside = Chain().decide(seen(topology, **columns)).scalar.tolist()
    assert inside == pytest.approx([0.45, 0.45, 0.25])
    outside = Chain().decide(seen(topology, **columns, external_queue=[5.0, NAN, NAN], queue=[0.0, 0.0, 0.0]))
    assert outside.scalar.tolist() == pytest.approx([0.0, 0.9, 0.25])
    assert outside.reason == "steepest chain first; q.b[0] frees 0.9 tuples per CPU second"


def test_a_source_with_as_many_tuples_inside_as_outside_is_not_one(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(2)])
    columns = {"cost": [1.0, 1.0], "selectivity": [1.0, 0.0]}
    same = seen(topology, **columns, external_queue=[5.0, NAN], queue=[5.0, 0.0])
    assert Chain().decide(same).scalar.tolist() == pytest.approx([0.5, 0.5])
    more = seen(topology, **columns, external_queue=[5.0, NAN], queue=[NAN, 0.0])
    assert Chain().decide(more).scalar.tolist() == pytest.approx([0.0, 1.0])


def test_what_the_next_tuple_costs_counts_where_it_is_known(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(2)])
    columns = {"cost": [1.0, 1.0], "selectivity": [0.5, 0.0]}
    assert Chain().decide(seen(topology, **columns)).scalar.tolist() == pytest.approx([2 / 3, 2 / 3])
    dear = seen(topology, **columns, next_cost=[0.5, 4.0])
    assert Chain().decide(dear).scalar.tolist() == pytest.approx([1.0, 0.25])


def test_an_unknown_age_is_that_of_an_empty_queue(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(2)])
    columns = {"cost": [1.0, 1.0], "selectivity": [0.5, 0.0], "queue": [3.0, 3.0]}
    vectors = Chain().decide(seen(topology, **columns, head_age=[NAN, 0.5])).priority.tolist()
    assert [age for _, age in vectors] == [0.0, 0.5]


def test_a_mix_has_helpers_of_its_own_only_if_one_of_its_members_has(line: Line, seen: Seen) -> None:
    snapshot = seen(Topology.of([line(2)]), queue=[1.0, 2.0], output_queue=[3.0, 0.0])
    assert Weighted([(QueueSize(), 1.0)]).decide(snapshot).helper is None
    mixed = Weighted([(QueueSize(), 1.0), (CongestionAware(), 1.0)]).decide(snapshot)
    assert mixed.helper is not None
    assert len(mixed.helper) == 2
    assert mixed.reason == "mix of 1 queue-size + 1 congestion-aware"


def test_a_round_robin_says_whose_turn_it_is(line: Line, seen: Seen) -> None:
    policy, topology = RoundRobin(), Topology.of([line(3)])
    assert policy.decide(seen(topology, queue=[0.0, 0.0, 4.0])).reason == "by turns; it is the turn of q.c[0]"
    assert policy.decide(seen(topology, queue=[0.0, 0.0, 0.0])).reason == "by turns; it is the turn of q.a[0]"
    assert policy.decide(Snapshot(Topology((), ()), 0.0, {})).reason == "nothing to schedule"
    asked = policy.decide(seen(topology, batches=[1.0, 1.0, 1.0]))
    assert asked.reason == "by turns, in the order in which they ask"


def test_nearness_is_decided_anew_for_each_topology(line: Line, seen: Seen) -> None:
    policy, two, three = DownstreamFirst(), Topology.of([line(2)]), Topology.of([line(3)])
    found = [policy.decide(seen(topology)).scalar.tolist() for topology in (two, two, three, two)]
    assert found == [[0.0, 1.0], [0.0, 1.0], [0.0, 0.5, 1.0], [0.0, 1.0]]


def test_an_operator_with_a_priority_must_run_at_first_and_may_end_later(line: Line, seen: Seen) -> None:
    policy, whole, part = UserPriority({"b": 5.0}), Topology.of([line(2)]), Topology.of([line(1)])
    with pytest.raises(ConfigError, match="policy 'user-priority': there is no operator 'b'"):
        policy.decide(seen(part))
    schedule = policy.decide(seen(whole))
    assert schedule.scalar.tolist() == [0.0, 5.0]
    assert schedule.reason == "by the priority of the operator, else of the query"
    assert policy.decide(seen(part)).scalar.tolist() == [0.0]


def test_a_rate_of_nothing_is_known_only_where_the_ideal_time_is(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1), line(1, "p")])
    rates = NormalizedRate().decide(seen(topology, global_rate=[0.0, 0.0], cost=[1.0, NAN]))
    assert rates.scalar.tolist() == pytest.approx([0.0, NAN], nan_ok=True)
    assert rates.reason == "highest output rate per ideal time first; q.a[0] leads with 0"
