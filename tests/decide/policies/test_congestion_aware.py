from __future__ import annotations

from collections.abc import Callable

import numpy as np

from treadle.decide.policies import CongestionAware
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_mains_go_by_input_helpers_by_output_sources_by_the_external_queue(line: Line, seen: Seen) -> None:
    snapshot = seen(Topology.of([line(3)]), queue=[0, 10, 3], output_queue=[7, 500, 0], external_queue=[900, NAN, NAN])
    schedule = CongestionAware().decide(snapshot)
    assert schedule.scalar.tolist() == [900, 10, 3]
    assert schedule.helper is not None
    assert schedule.helper.tolist() == [7, 500, 0]
    assert schedule.reason == "most congested first; q.a[0] has 900 tuples waiting"


def test_the_external_queue_counts_for_sources_only_and_never_hides_the_inner_one(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(2, "p"), line(1, "q"), line(1, "r")])
    snapshot = seen(topology, queue=[NAN, 4, 6, 5], external_queue=[8, 99, 0, NAN])
    assert CongestionAware().decide(snapshot).scalar.tolist() == [8, 4, 6, 5]


def test_a_helper_without_a_known_output_queue_follows_its_main(line: Line, seen: Seen) -> None:
    schedule = CongestionAware().decide(seen(Topology.of([line(2)]), queue=[1, 2], output_queue=[NAN, 9]))
    assert schedule.helper is not None
    assert schedule.helper.tolist() == [1, 9]


def test_an_engine_without_output_queues_gets_no_schedule_for_helpers(line: Line, seen: Seen) -> None:
    schedule = CongestionAware().decide(seen(Topology.of([line(2)]), queue=[1, NAN]))
    assert schedule.helper is None
    assert np.isnan(schedule.scalar).tolist() == [False, True]
