from __future__ import annotations

from collections.abc import Callable

from treadle.decide.policies import QueueSize
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_the_longest_queue_is_the_most_urgent(line: Line, seen: Seen) -> None:
    schedule = QueueSize().decide(seen(Topology.of([line(3)]), queue=[4, 120, 0]))
    assert schedule.scalar.tolist() == [4, 120, 0]
    assert schedule.spacing == "linear"
    assert schedule.reason == "longest queue first; q.b[0] has 120 tuples"


def test_a_queue_that_nobody_knows_has_no_priority(line: Line, seen: Seen) -> None:
    schedule = QueueSize().decide(seen(Topology.of([line(2)]), queue=[NAN, NAN]))
    assert schedule.reason == "longest queue first"
    assert str(schedule.scalar.tolist()) == "[nan, nan]"
