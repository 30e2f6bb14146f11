from __future__ import annotations

from collections.abc import Callable

from treadle.decide.policies import HighestRate
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_the_priority_is_the_global_rate_over_orders_of_magnitude(line: Line, seen: Seen) -> None:
    schedule = HighestRate().decide(seen(Topology.of([line(3)]), global_rate=[0.5, 20, NAN]))
    assert str(schedule.scalar.tolist()) == "[0.5, 20.0, nan]"
    assert schedule.spacing == "log"
    assert schedule.reason == "highest output rate first; q.b[0] makes 20 results per CPU second"
