"""An f by name, of another package, or of the user: what it returns is checked, and nonsense changes nothing."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.assign import AssignAdaptive
from treadle.decide.assignment import Assignment, assigner_of, checked, names, workers_by_group
from treadle.enforce.gate.gate import Gate
from treadle.errors import ConfigError
from treadle.model import Operator, Query, Topology
from treadle.testing import check_policy
from treadle.values import Snapshot

NAMES = ("none", "random", "round-robin", "load-balance", "adaptive")


def seen(*load: float, operators: int = 1) -> Snapshot:
    """Queries of some operators each, with the load of each row: its cost, at one tuple a second."""
    rows = tuple(Operator(f"o{number}") for number in range(operators))
    topology = Topology.of(Query(f"q{number}", rows) for number in range(len(load) // operators))
    return Snapshot(topology, 0.0, {"cost": np.array(load), "rate": np.ones(len(load))})


def assignment(f: object, groups: int = 2) -> Assignment:
    return Assignment(assigner_of(f), lambda: groups)


def owners(policy: Assignment, snapshot: Snapshot) -> list[float]:
    owner: list[float] = policy.decide(snapshot).scalar.tolist()
    return owner


def test_assignments_without_a_memory_conform_to_what_policies_must() -> None:
    assert set(NAMES) <= set(names())
    for name in ("none", "round-robin"):
        check_policy(lambda rng, name=name: assignment(name, 3))  # type: ignore[misc]


def test_each_name_assigns_as_it_says() -> None:
    assert owners(assignment("none"), seen(1.0, 2.0)) == [-1, -1]
    assert owners(assignment("round-robin"), seen(*[1.0] * 6, operators=2)) == [0, 0, 1, 1, 0, 0]
    assert owners(assignment("load-balance"), seen(20.0, 1.0, 1.0, 1.0)) == [0, 1, 1, 1]
    assert owners(assignment("adaptive"), seen(20.0, 1.0, 1.0, 1.0)) == [0, 1, 1, 1]
    assert sorted(owners(assignment("random"), seen(1.0, 1.0))) == [0, 1]


def test_load_balance_stays_as_it_is_while_another_assignment_is_hardly_better() -> None:
    policy = assignment("load-balance")
    first = owners(policy, seen(10.0, 9.0, 4.0, 3.0))
    assert owners(policy, seen(9.0, 10.0, 3.0, 4.0)) == first
    assert owners(policy, seen(10.0, 1.0, 1.0, 9.0)) == [0, 1, 0, 1]


def by_cost(snapshot: Snapshot, groups: int) -> Any:
    return (snapshot["cost"] > 1.0) * (groups - 1)


class ByCost:
    def __call__(self, snapshot: Snapshot, groups: int) -> Any:
        return by_cost(snapshot, groups)


@pytest.mark.parametrize("name", ["by_cost", "ByCost"])
def test_a_function_or_class_of_a_module_assigns(name: str) -> None:
    spec = f"{__name__}:{name}"
    policy = assignment(spec, 4)
    assert owners(policy, seen(1.0, 2.0)) == [0, 3]
    assert policy.chosen.name == spec


def test_an_assigner_object_keeps_its_own_options() -> None:
    policy = assignment(AssignAdaptive(1, threshold=5.0))
    assert owners(policy, seen(1.0, 1.0)) == [0, 1]
    assert policy.chosen.name == "assign-adaptive"


def test_a_function_of_the_user_may_leave_rows_to_any_slot() -> None:
    def mine(snapshot: Snapshot, groups: int) -> list[float]:
        return [groups - 1, -1, math.nan]

    policy = assignment(mine, 4)
    assert owners(policy, seen(1.0, 1.0, 1.0)) == [3, -1, -1]
    assert policy.chosen.name == "mine"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([0], "returned 1 numbers for 2 rows"),
        ([[0, 1]], "returned list, not a number for each row"),
        ([0, 2], "returned group 2 for 'q1.o0[0]', of groups 0 to 1"),
        ([0.5, 0], "returned group 0.5 for 'q0.o0[0]'"),
        ([-2, 0], "returned group -2"),
        ([math.inf, 0], "returned group inf"),
        (None, "returned NoneType, not a number for each row"),
        ("ab", "returned str, not a number for each row"),
        ({"q0": 1}, "returned dict, not a number for each row"),
    ],
)
def test_what_is_not_a_group_for_each_row_is_refused_with_the_reason(found: Any, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        checked(found, seen(1.0, 1.0), 2)
    assert why in error.value.message


def test_an_f_that_fails_leaves_the_assignment_before_in_force_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[Callable[[], Any]] = [lambda: [1, 0], lambda: 1 // 0, lambda: 1 // 0, lambda: [7, 7], lambda: [0, 1]]

    def moody(snapshot: Snapshot, groups: int) -> Any:
        return answers.pop(0)()

    policy = assignment(moody)
    with caplog.at_level(logging.WARNING, "treadle.decide"):
        found = [owners(policy, seen(1.0, 1.0)) for _ in range(4)]
        assert policy.refused == "returned group 7 for 'q0.o0[0]', of groups 0 to 1"
        found.append(owners(policy, seen(1.0, 1.0)))
    assert found == [[1, 0]] * 4 + [[0, 1]]
    assert policy.refused == ""
    assert [record.getMessage() for record in caplog.records] == [
        "assign 'moody' raised ZeroDivisionError: integer division or modulo by zero; "
        "the assignment before stays in force",
        "assign 'moody' returned group 7 for 'q0.o0[0]', of groups 0 to 1; the assignment before stays in force",
    ]


def test_an_f_that_fails_at_once_leaves_all_rows_to_any_slot() -> None:
    assert owners(assignment(lambda snapshot, groups: 1 // 0), seen(1.0, 1.0)) == [-1, -1]


def test_a_worker_that_is_lost_changes_as_few_groups_as_can_be() -> None:
    assert workers_by_group([], [3, 5]) == [3, 5]
    assert workers_by_group([3, 5], [3, 5, 7]) == [3, 5, 7]
    assert workers_by_group([3, 5, 7], [5, 7]) == [7, 5]
    assert workers_by_group([3, 5, 7], [5, 7, 9]) == [9, 5, 7]
    assert workers_by_group([3, 5, 7], [3]) == [3]


@given(st.lists(st.integers(0, 9), unique=True), st.lists(st.integers(0, 9), unique=True))
def test_each_living_worker_has_one_group_and_most_keep_theirs(before: list[int], living: list[int]) -> None:
    found = workers_by_group(before, living)
    assert sorted(found) == sorted(living)
    lost = len(set(before) - set(living))
    staying = [group for group, worker in enumerate(before) if worker in living]
    assert sum(group >= len(found) or found[group] != before[group] for group in staying) <= lost


def test_an_f_is_tried_before_it_is_taken_if_there_is_a_snapshot() -> None:
    policy, wrong = assignment("none"), assigner_of(lambda snapshot, groups: 1 // 0)
    policy.check(wrong)
    policy.decide(seen(1.0, 1.0))
    with pytest.raises(ConfigError, match="raised ZeroDivisionError"):
        policy.check(wrong)
    with pytest.raises(ConfigError, match="1 numbers for 2 rows"):
        policy.check(assigner_of(lambda snapshot, groups: [0]))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("balance", r"there is no assignment 'balance' \(did you mean load-balance"),
        (3, "assign can't be 3"),
        (None, "assign can't be None"),
        (AssignAdaptive, "assign can't be <class"),
        ("math:pi", r"assign: 'math:pi' can't be called \(name a function of snapshot and groups, or a class of one"),
        ("nowhere:f", "nowhere:f: can't be imported: ModuleNotFoundError"),
        ("math:nothing", "math:nothing: can't be imported: AttributeError"),
        ("treadle.decide.assign:AssignRandom", "assign: can't be made: TypeError"),
    ],
)
def test_what_is_no_assignment_is_refused(wrong: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        assigner_of(wrong)


def idle_share(name: str, load: float, slots: int = 4, hops: int = 12, seconds: int = 60) -> float:
    """Hops whose costs differ by 20 times at a gate in virtual time: the share of slot time idle while a hop waits."""
    clock, ends, done, held = [0.0], list[tuple[float, int, float, float]](), np.zeros(hops), np.zeros(hops)
    cost = 1e-3 * 20.0 ** (np.arange(hops) / (hops - 1))
    rate = load * slots / cost.sum()
    gate, policy = Gate(slots, now=lambda: clock[0]), assignment(name, slots)
    topology = Topology.of(Query(f"q{number}", (Operator("only"),)) for number in range(hops))

    def grant(hop: int) -> None:
        rows = min(rate * clock[0] - done[hop], 0.5 / cost[hop])
        heapq.heappush(ends, (clock[0] + 0.03 + rows * cost[hop], hop, rows, 0.03 + rows * cost[hop]))

    for name in topology.ids:
        gate.register(name)
    for step in range(50 * seconds):
        while ends and ends[0][0] <= step / 50:
            clock[0], hop, rows, took = heapq.heappop(ends)
            done[hop] += rows
            held[hop] += took
            gate.release(topology.ids[hop])
        clock[0] = step / 50
        waiting = rate * clock[0] - done
        if step % 50 == 0:
            columns = {"busy": held / max(clock[0], 0.1), "cost": cost, "queue": waiting}
            owner = policy.decide(Snapshot(topology, clock[0], columns)).scalar
            gate.assign({each: int(group) for each, group in zip(topology.ids, owner, strict=True)})
        for hop in np.flatnonzero(waiting * cost > 0.06).tolist():
            gate.offer(topology.ids[hop], partial(grant, hop))
    return float(gate.stats.idle / seconds / slots)


@pytest.mark.parametrize("load", [0.7, 1.0])
def test_slots_with_balanced_hops_are_idle_for_less_time_than_those_with_random_ones(load: float) -> None:
    none, random, balanced, adaptive = (
        idle_share(name, load) for name in ("none", "random", "load-balance", "adaptive")
    )
    assert none == 0.0
    assert max(balanced, adaptive) < random / 2
