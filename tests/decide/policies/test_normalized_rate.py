from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from treadle.decide.policies import NormalizedRate
from treadle.decide.policies.normalized_rate import ideal_time
from treadle.model import Operator, Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_a_short_query_comes_before_a_long_one_of_the_same_rate(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(2, "long"), line(1, "short")])
    schedule = NormalizedRate().decide(seen(topology, global_rate=[2, 3, 3], cost=[4, 6, 0.5]))
    assert schedule.scalar.tolist() == pytest.approx([0.2, 0.3, 6])  # HR / T, T = 10 s for long, 0.5 s for short
    assert schedule.spacing == "log"


def test_in_a_chain_the_ideal_time_is_the_same_for_all(line: Line) -> None:
    assert ideal_time(Topology.of([line(3)]), np.array([1.0, 2.0, 4.0])).tolist() == [7, 7, 7]


def test_over_branches_and_joins_the_costliest_path_counts() -> None:
    operators = (Operator("a"), Operator("b"), Operator("c", ("a", "b")), Operator("d", ("c",)), Operator("e", ("c",)))
    topology = Topology.of([Query("q", operators)])
    assert ideal_time(topology, np.array([1.0, 5.0, 2.0, 3.0, 10.0])).tolist() == [13, 17, 17, 10, 17]


def test_an_unknown_cost_is_unknown_for_the_paths_over_it_only(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(2, "p"), line(1, "q")])
    schedule = NormalizedRate().decide(seen(topology, global_rate=[1, 1, 1], cost=[1, NAN, 1]))
    assert np.isnan(schedule.scalar).tolist() == [True, True, False]


def test_no_cost_and_no_results_are_no_error(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, name) for name in "pqr"])
    schedule = NormalizedRate().decide(seen(topology, global_rate=[0, np.inf, 0], cost=[0, 0, 1]))
    assert schedule.scalar.tolist() == [0, np.inf, 0]
