from __future__ import annotations

from collections.abc import Callable

from treadle.decide.policies import UserPriority
from treadle.model import Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def test_every_operator_has_the_priority_of_its_query(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(2, "urgent", priority=5), line(1, "slow", priority=-1)])
    assert UserPriority().decide(seen(topology)).scalar.tolist() == [5, 5, -1]


def test_of_fused_operators_the_highest_counts(line: Line, seen: Seen) -> None:
    """Lachesis Alg. 2; an operator that is not listed has the priority of its query."""
    topology = Topology.of([line(4, "q", priority=1)], fused=[("q", ("b", "c"))])
    assert UserPriority({"b": 3, "c": 7}).decide(seen(topology)).scalar.tolist() == [1, 7, 1]
    assert UserPriority({"b": -3}).decide(seen(topology)).scalar.tolist() == [1, 1, 1]


def test_the_name_with_the_query_is_stronger(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, "p"), line(1, "q")], parallelism={("q", "a"): 2})
    assert UserPriority({"a": 1, "q.a": 9}).decide(seen(topology)).scalar.tolist() == [1, 9, 9]


def test_a_new_topology_is_read_anew(line: Line, seen: Seen) -> None:
    policy = UserPriority({"b": 4})
    assert policy.decide(seen(Topology.of([line(2)]))).scalar.tolist() == [0, 4]
    assert policy.decide(seen(Topology.of([line(3)]))).scalar.tolist() == [0, 4, 0]
