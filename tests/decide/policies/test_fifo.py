from __future__ import annotations

from collections.abc import Callable

import numpy as np

from treadle.decide.policies import Fifo
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_the_oldest_tuple_goes_first(line: Line, seen: Seen) -> None:
    schedule = Fifo().decide(seen(Topology.of([line(3)]), head_age=[2, 1, 0.5], queue=[1, 1, 1]))
    assert schedule.scalar.tolist() == [2, 1, 0]


def test_a_tuple_that_was_begun_is_carried_through_before_one_that_came_with_it(line: Line, seen: Seen) -> None:
    """AMoS Table 1 at t = 1.5: of the two tuples of t = 1, one waits in Q1 and what is left of the other in Q2."""
    schedule = Fifo().decide(seen(Topology.of([line(3)]), head_age=[0.5, 0.5, NAN], queue=[1, 0.25, 0]))
    assert np.argsort(-schedule.scalar).tolist() == [1, 0, 2]


def test_an_empty_queue_comes_behind_a_tuple_of_this_very_moment(line: Line, seen: Seen) -> None:
    schedule = Fifo().decide(seen(Topology.of([line(3)]), head_age=[0, NAN, 0], queue=[2, 0, 0]))
    assert int(np.argmax(schedule.scalar)) == 0


def test_an_unknown_age_is_unknown_as_a_whole(line: Line, seen: Seen) -> None:
    schedule = Fifo().decide(seen(Topology.of([line(2)]), head_age=[NAN, 1]))
    assert np.isnan(schedule.priority[0]).all()
    assert schedule.priority[1].tolist() == [1, 0]
