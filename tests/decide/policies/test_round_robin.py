from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from treadle.decide.policies import RoundRobin
from treadle.errors import ConfigError
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_the_turn_goes_round(line: Line, seen: Seen) -> None:
    policy, snapshot = RoundRobin(), seen(Topology.of([line(3)]))
    rounds = [policy.decide(snapshot).scalar.tolist() for _ in range(4)]
    assert rounds == [[3, 2, 1], [1, 3, 2], [2, 1, 3], [3, 2, 1]]


def test_who_has_nothing_to_do_is_passed_over_and_takes_nobodys_turn(line: Line, seen: Seen) -> None:
    policy, snapshot = RoundRobin(), seen(Topology.of([line(4)]), queue=[0, 5, NAN, 0])
    rounds = [policy.decide(snapshot).scalar.tolist() for _ in range(3)]
    assert rounds == [[0, 2, 1, 0], [0, 1, 2, 0], [0, 2, 1, 0]]


def test_with_more_processors_more_have_their_turn(line: Line, seen: Seen) -> None:
    policy, snapshot = RoundRobin(step=2), seen(Topology.of([line(3)]))
    first = [int(np.argmax(policy.decide(snapshot).scalar)) for _ in range(4)]
    assert first == [0, 2, 1, 0]


def test_the_turn_is_kept_when_everybody_is_idle(line: Line, seen: Seen) -> None:
    policy, topology = RoundRobin(), Topology.of([line(2)])
    policy.decide(seen(topology))
    assert policy.decide(seen(topology, queue=[0, 0])).scalar.tolist() == [0, 0]
    assert policy.decide(seen(topology)).scalar.tolist() == [1, 2]


def test_a_saved_turn_goes_on_also_in_a_smaller_topology(line: Line, seen: Seen) -> None:
    policy, other = RoundRobin(), RoundRobin()
    for _ in range(4):
        policy.decide(seen(Topology.of([line(5)])))
    other.load(policy.state())
    assert other.state() == {"turn": 4}
    assert other.decide(seen(Topology.of([line(3)]))).scalar.tolist() == [1, 3, 2]


def test_where_operators_ask_before_each_batch_all_are_equal_and_the_line_is_the_ring(line: Line, seen: Seen) -> None:
    policy, snapshot = RoundRobin(), seen(Topology.of([line(3)]), queue=[0, 5, NAN], batches=[7, 0, 2])
    assert [policy.decide(snapshot).scalar.tolist() for _ in range(2)] == [[0, 0, 0], [0, 0, 0]]


def test_a_step_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="step is 0"):
        RoundRobin(step=0)


def test_a_source_whose_rows_wait_outside_has_its_turn(line: Line, seen: Seen) -> None:
    snapshot = seen(Topology.of([line(3)]), queue=[0, 5, 0], external_queue=[9, NAN, NAN])
    rounds = [RoundRobin().decide(snapshot).scalar.tolist() for _ in range(1)]
    assert rounds == [[2, 1, 0]]
