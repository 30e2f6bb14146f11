from __future__ import annotations

from collections.abc import Callable

import numpy as np

from treadle.decide.policies import Nothing
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_the_baseline_leaves_everything_as_it_was(line: Line, seen: Seen) -> None:
    schedule = Nothing().decide(seen(Topology.of([line(3)])))
    assert np.isnan(schedule.priority).all()
    assert schedule.priority.shape == (3, 1)
