from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from treadle.decide.policies import DownstreamFirst
from treadle.model import Operator, Query, Topology
from treadle.values import Snapshot

Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_the_nearer_to_the_sink_the_more_urgent(line: Line, seen: Seen) -> None:
    schedule = DownstreamFirst().decide(seen(Topology.of([line(5)])))
    assert schedule.scalar.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert schedule.reason == "nearest to the result first"


def test_helpers_are_left_as_they_are(line: Line, seen: Seen) -> None:
    schedule = DownstreamFirst().decide(seen(Topology.of([line(3)])))
    assert schedule.helper is not None
    assert np.isnan(schedule.helper).all()


def test_long_and_short_queries_are_alike_and_one_of_a_single_step_is_left_alone(line: Line, seen: Seen) -> None:
    schedule = DownstreamFirst().decide(seen(Topology.of([line(3, "p"), line(2, "q"), line(1, "r")])))
    assert schedule.scalar.tolist() == pytest.approx([0.0, 0.5, 1.0, 0.0, 1.0, np.nan], nan_ok=True)


def test_of_two_ways_to_a_sink_the_longer_one_counts(seen: Seen) -> None:
    query = Query("q", (Operator("a"), Operator("b", ("a",)), Operator("c", ("b",)), Operator("d", ("a", "c"))))
    schedule = DownstreamFirst().decide(seen(Topology.of([query])))
    assert schedule.scalar.tolist() == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])
