from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from treadle.decide.policies import Random
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_each_round_is_drawn_anew_and_a_seed_repeats_it_all(line: Line, seen: Seen) -> None:
    snapshot = seen(Topology.of([line(5)]))
    first, second = (Random(np.random.default_rng(7)) for _ in range(2))
    rounds = [first.decide(snapshot).scalar.tolist() for _ in range(3)]
    assert rounds == [second.decide(snapshot).scalar.tolist() for _ in range(3)]
    assert rounds[0] != rounds[1]


def test_a_saved_state_goes_on_where_it_was(line: Line, seen: Seen) -> None:
    snapshot = seen(Topology.of([line(5)]))
    policy, other = Random(np.random.default_rng(7)), Random(np.random.default_rng(8))
    policy.decide(snapshot)
    other.load(json.loads(json.dumps(policy.state())))
    assert other.decide(snapshot).scalar.tolist() == policy.decide(snapshot).scalar.tolist()
