from __future__ import annotations

from collections.abc import Callable

import numpy as np

from treadle.decide.policies import Mtiq
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_most_tuples_go_first(line: Line, seen: Seen) -> None:
    """AMoS Table 2 at t = 3.5: Q2 has grown longer than Q1 for the first time."""
    schedule = Mtiq().decide(seen(Topology.of([line(3)]), queue=[1, 1.25, 0]))
    assert np.argsort(-schedule.scalar).tolist() == [1, 0, 2]


def test_of_equal_queues_the_one_upstream_goes_first(line: Line, seen: Seen) -> None:
    """AMoS Table 2 at t = 3.75: Q1 and Q2 hold one tuple each, and operator 1 is run."""
    schedule = Mtiq().decide(seen(Topology.of([line(3)]), queue=[1, 1, 0.125]))
    assert np.argsort(-schedule.scalar).tolist() == [0, 1, 2]


def test_an_unknown_queue_is_unknown_as_a_whole(line: Line, seen: Seen) -> None:
    schedule = Mtiq().decide(seen(Topology.of([line(2)]), queue=[NAN, 1]))
    assert np.isnan(schedule.priority).tolist() == [[True, True], [False, False]]
