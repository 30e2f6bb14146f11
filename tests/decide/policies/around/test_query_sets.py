from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.policies import CongestionAware, Fcfs, HighestRate, Nothing, QueueSize, RoundRobin
from treadle.decide.policies.around.query_sets import Periodic, QuerySet, QuerySets, places
from treadle.decide.policy import Policy
from treadle.model import Operator, Query, Topology
from treadle.testing import check_policy
from treadle.values import Schedule, Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]
METRICS = ("head_age", "global_rate", "queue", "output_queue", "external_queue")


def sets(*given: tuple[str, Policy, float], at_gate: bool = False) -> QuerySets:
    """Sets by pattern; all other queries have a set of priority 1 in which nothing is decided."""
    made = [QuerySet(name, partial(_fits, name), policy, priority) for name, policy, priority in given]
    return QuerySets([*made, QuerySet("others", lambda _: True, Nothing(), 1.0)], at_gate=at_gate)


def _fits(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern)


SETS = st.lists(st.tuples(st.sampled_from([Fcfs, HighestRate, QueueSize]), st.integers(0, 3)), min_size=1, max_size=3)
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0, 100), st.floats(0.01, 1e6), st.floats(0, 1e6)), min_size=1, max_size=12
)


@given(SETS, ROWS)
def test_sets_are_in_the_order_of_priorities_and_each_has_the_order_of_its_policy_inside(
    line: Line, seen: Seen, given_sets: list[tuple[type[Policy], int]], rows: list[tuple[int, float, float, float]]
) -> None:
    chosen = [(f"s{number}-*", make(), float(priority)) for number, (make, priority) in enumerate(given_sets)]
    of_row = [min(number, len(chosen)) for number, *_ in rows]
    topology = Topology.of([line(1, f"s{number}-{row}") for row, number in enumerate(of_row)])
    columns = {"head_age": [r[1] for r in rows], "global_rate": [r[2] for r in rows], "queue": [r[3] for r in rows]}
    order = sets(*chosen).decide(seen(topology, **columns)).scalar
    priority = [*(each[2] for each in chosen), 1.0]
    alone = [make().decide(seen(topology, **columns)).scalar for make, _ in given_sets] + [np.zeros(len(rows))]
    for a, b in np.ndindex(len(rows), len(rows)):
        if priority[of_row[a]] != priority[of_row[b]]:
            assert (order[a] > order[b]) == (priority[of_row[a]] > priority[of_row[b]])
        elif of_row[a] == of_row[b]:
            assert (order[a] > order[b]) == (alone[of_row[a]][a] > alone[of_row[a]][b])


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100)), min_size=1, max_size=8), st.randoms())
def test_the_decision_for_a_query_does_not_depend_on_queries_of_other_sets(
    line: Line, seen: Seen, rows: list[tuple[bool, float]], chance: object
) -> None:
    topology = Topology.of([line(1, f"{'a' if mine else 'b'}{row}") for row, (mine, _) in enumerate(rows)])
    both = sets(("a*", Fcfs(), 2), ("b*", Fcfs(), 1))
    parts = both.parts(seen(topology, head_age=[age for _, age in rows]))
    alone = Topology.of([query for query, (mine, _) in zip(topology.queries, rows, strict=True) if mine])
    expected = Fcfs().decide(seen(alone, head_age=[age for mine, age in rows if mine])).scalar.tolist()
    found = [part.schedule.scalar.tolist() for part in parts if part.number == 0]
    assert found == ([expected] if expected else [])


def test_a_policy_sees_only_its_own_queries(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(2, "a"), line(1, "b"), line(1, "c")])
    asked: list[tuple[tuple[str, ...], list[float]]] = []

    class Asked(Policy):
        name = "asked"
        needs = ("queue",)

        def decide(self, snapshot: Snapshot) -> Schedule:
            asked.append((snapshot.topology.ids, snapshot["queue"].tolist()))
            return Schedule(snapshot["queue"])

    sets(("[ac]", Asked(), 2), ("b", Asked(), 1)).decide(seen(topology, queue=[1, 2, 3, 4]))
    assert asked == [(("a.a[0]", "a.b[0]", "c.a[0]"), [1, 2, 4]), (("b.a[0]",), [3])]


def test_sets_of_equal_priority_are_mixed_by_their_places(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, name) for name in ("a1", "a2", "b1", "b2", "b3")])
    both = sets(("a*", Fcfs(), 5), ("b*", HighestRate(), 5))
    rates = [NAN, NAN, 1e6, 2e6, 3e6]
    order = both.decide(seen(topology, head_age=[1, 2, NAN, NAN, NAN], global_rate=rates)).scalar
    assert order.tolist() == [0, 2, 0, 1, 2]


def test_of_what_a_policy_knows_nothing_all_is_equally_urgent_in_its_set(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, name) for name in ("a1", "a2", "b")])
    order = sets(("a*", Fcfs(), 5)).decide(seen(topology, head_age=[NAN, NAN, 3])).scalar
    assert order.tolist() == [1, 1, 0]


@pytest.mark.parametrize(("batches", "order"), [([1, 1, 1], [1, 2, 0]), ([0, 1, 1], [NAN, 1, 0])])
def test_at_a_gate_what_is_unknown_goes_last_in_its_set_once_it_was_tried(
    seen: Seen, batches: Sequence[float], order: Sequence[float]
) -> None:
    topology = Topology.of([Query(name, (Operator(name),)) for name in ("a1", "a2", "b")])
    at_gate = sets(("a*", Fcfs(), 5), at_gate=True)
    found = at_gate.decide(seen(topology, head_age=[NAN, 2, 3], batches=batches)).scalar
    assert np.array_equal(found, order, equal_nan=True)
    elsewhere = sets(("a*", Fcfs(), 5)).decide(seen(topology, head_age=[NAN, 2, 3], batches=batches)).scalar
    assert np.array_equal(elsewhere, [NAN, 1, 0], equal_nan=True)


def test_at_a_gate_an_operator_belongs_to_the_most_urgent_set_of_the_sinks_that_it_reaches(seen: Seen) -> None:
    operators = (
        Operator("shared"),
        Operator("own", ("shared",)),
        Operator("alerts", ("shared",)),
        Operator("reports", ("own",)),
    )
    topology = Topology.of([Query("alerts", operators)])
    made = sets(("alerts", Fcfs(), 9), ("reports", QueueSize(), 2), at_gate=True)
    assert made.labels(topology) == {
        "alerts.shared[0]": "alerts",
        "alerts.own[0]": "reports",
        "alerts.alerts[0]": "alerts",
        "alerts.reports[0]": "reports",
    }
    found = made.decide(seen(topology, head_age=[1, 50, 2, 50], queue=[50, 1, 50, 2], batches=[1, 1, 1, 1]))
    assert found.scalar.tolist() == [2, 0, 3, 1]
    fused = Topology.of([Query("alerts", operators)], fused=[("alerts", tuple(op.name for op in operators))])
    assert set(made.labels(fused).values()) == {"alerts"}


def test_helpers_follow_the_policy_of_their_set(line: Line, seen: Seen) -> None:
    topology = Topology.of([line(1, "a"), line(1, "b")])
    both = sets(("a", CongestionAware(), 2), ("b", QueueSize(), 1))
    schedule = both.decide(seen(topology, queue=[1, 2], output_queue=[70, 80], external_queue=[NAN, NAN]))
    assert schedule.helper is not None
    assert schedule.scalar[0] < schedule.helper[0]
    assert schedule.scalar[1] == schedule.helper[1] < schedule.scalar[0]


def test_without_queries_nothing_is_decided(seen: Seen) -> None:
    assert len(sets(("a", Fcfs(), 2)).decide(seen(Topology((), ()))).scalar) == 0


def test_places_are_from_zero_to_one_and_equals_are_at_the_top() -> None:
    main, helper = places(Schedule(np.array([5.0, NAN, 7.0, 6.0])))
    assert np.array_equal(main, [0, NAN, 1, 0.5], equal_nan=True)
    assert np.array_equal(main, helper, equal_nan=True)
    assert places(Schedule(np.array([3.0, 3.0])))[0].tolist() == [1, 1]
    assert places(Schedule(np.array([NAN, NAN])))[0].tolist() == [1, 1]
    left = places(Schedule(np.array([1.0, 2.0]), helper=np.array([NAN, NAN])))
    assert np.isnan(left[1]).all()


@pytest.mark.parametrize("at_gate", [False, True])
def test_it_passes_the_conformance_suite(at_gate: bool) -> None:
    check_policy(lambda _: sets(("q0", Fcfs(), 5), ("q1", HighestRate(), 2), at_gate=at_gate))


# ------------------------------------------------------------ periods


def at(snapshot: Snapshot, time: float) -> Snapshot:
    return Snapshot(snapshot.topology, time, snapshot.columns)


def test_a_set_decides_when_its_period_has_passed(line: Line, seen: Seen) -> None:
    policy = RoundRobin()
    asked: list[float] = []

    class Counted(Nothing):
        def decide(self, snapshot: Snapshot) -> Schedule:
            asked.append(snapshot.time)
            return super().decide(snapshot)

    first = seen(Topology.of([line(1, "a")]), queue=[1])
    kept = Periodic(Counted(), 0.1)
    for time in (0.0, 0.05, 0.098, 0.15, 0.2, 5.0):
        kept.decide(at(first, time))
    assert asked == [0.0, 0.098, 0.2, 5.0]
    kept.decide(at(seen(Topology.of([line(1, "b")]), queue=[1]), 5.01))  # other queries: their order is not known yet
    assert asked[-1] == 5.01
    assert not Periodic(Nothing(), 0.1).steady
    assert Periodic(Nothing()).steady
    assert policy.name == Periodic(policy).name


def test_without_a_period_a_policy_decides_once_on_each_snapshot(line: Line, seen: Seen) -> None:
    asked: list[float] = []

    class Counted(Nothing):
        def decide(self, snapshot: Snapshot) -> Schedule:
            asked.append(snapshot.time)
            return super().decide(snapshot)

    kept = Periodic(Counted())
    one, two = (at(seen(Topology.of([line(1, "a")]), queue=[1]), time) for time in (0.0, 0.0))
    for snapshot in (one, one, two, two):
        kept.decide(snapshot)
    assert asked == [0.0, 0.0]


def test_the_state_of_all_policies_is_kept(line: Line, seen: Seen) -> None:
    made = sets(("a", RoundRobin(), 2), ("b", Fcfs(), 1))
    made.decide(seen(Topology.of([line(1, "a")]), head_age=[1], batches=[3], queue=[1]))
    again = sets(("a", RoundRobin(), 2), ("b", Fcfs(), 1))
    again.load(made.state())
    assert again.state() == made.state()
