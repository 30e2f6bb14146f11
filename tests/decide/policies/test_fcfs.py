from __future__ import annotations

from collections.abc import Callable

from treadle.decide.policies import Fcfs
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_the_oldest_head_is_the_most_urgent(line: Line, seen: Seen) -> None:
    schedule = Fcfs().decide(seen(Topology.of([line(2)]), head_age=[0.5, 3]))
    assert schedule.scalar.tolist() == [0.5, 3]
    assert schedule.reason == "oldest tuple first; q.b[0] holds one 3 s old"


def test_an_empty_queue_has_age_0_whatever_its_head_age_says(line: Line, seen: Seen) -> None:
    schedule = Fcfs().decide(seen(Topology.of([line(4)]), head_age=[NAN, 9, NAN, 2], queue=[0, 0, 5, NAN]))
    assert str(schedule.scalar.tolist()) == "[0.0, 0.0, nan, 2.0]"


def test_what_waits_outside_counts_for_a_source(line: Line, seen: Seen) -> None:
    columns = {"head_age": [4, 4, 1], "queue": [0, 0, 5], "external_queue": [7, NAN, NAN]}
    assert Fcfs().decide(seen(Topology.of([line(3)]), **columns)).scalar.tolist() == [4, 0, 1]
