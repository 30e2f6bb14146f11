import json
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.assign import (
    ASSIGNERS,
    AssignAdaptive,
    Assigner,
    AssignLoadBalance,
    AssignRandom,
    AssignRoundRobin,
    assigner,
    load_of,
)
from treadle.decide.transform import SCALES
from treadle.errors import ConfigError
from treadle.model import Floats, Operator, Query, Topology
from treadle.values import Snapshot

loads = st.lists(st.floats(0.001, 100) | st.sampled_from([0.0, 1.0, math.nan, math.inf]), min_size=1, max_size=30)
names = st.sampled_from(sorted(ASSIGNERS))


def alone(*names: str) -> Topology:
    """Queries of one operator each, so that a row is a query."""
    return Topology.of(Query(name, (Operator("only"),)) for name in names)


def seen(load: list[float], topology: Topology | None = None) -> Snapshot:
    """A snapshot in which rows have these loads: their cost, at one tuple a second."""
    topology = topology or alone(*(f"q{number}" for number in range(len(load))))
    columns = {"cost": np.array(load, dtype=np.float64), "rate": np.ones(len(load))}
    return Snapshot(topology, 0.0, columns)


def owners(policy: Assigner, snapshot: Snapshot) -> list[int]:
    return [int(number) for number in SCALES["owner"].apply(policy.decide(snapshot).scalar)]


def busy(load: list[float], owner: list[int], threads: int) -> Floats:
    return np.bincount(owner, weights=load, minlength=threads).astype(np.float64)


def counts(owner: list[int], threads: int) -> list[int]:
    return [owner.count(thread) for thread in range(threads)]


def moved(before: list[int], after: list[int]) -> int:
    return sum(a != b for a, b in zip(before, after, strict=True))


@given(names, loads, st.integers(1, 8), st.integers(1, 8))
def test_every_operator_has_a_thread_that_exists(name: str, load: list[float], threads: int, later: int) -> None:
    policy = assigner(name, threads, np.random.default_rng(1))
    assert all(0 <= owner < threads for owner in owners(policy, seen(load)))
    policy.set_threads(later)
    assert all(0 <= owner < later for owner in owners(policy, seen(load)))


@given(st.integers(1, 40), st.integers(1, 8))
def test_random_gives_threads_as_many_operators_each(count: int, threads: int) -> None:
    policy = AssignRandom(threads, np.random.default_rng(2))
    many = counts(owners(policy, seen([1.0] * count)), threads)
    assert max(many) - min(many) <= 1


def test_random_is_drawn_anew_each_time_and_repeats_with_its_seed() -> None:
    snapshot = seen([1.0] * 20)
    first, second = (AssignRandom(4, np.random.default_rng(3)) for _ in range(2))
    draws = [owners(first, snapshot) for _ in range(3)]
    assert draws == [owners(second, snapshot) for _ in range(3)]
    assert draws[0] != draws[1]


def test_random_goes_on_from_its_saved_state() -> None:
    snapshot = seen([1.0] * 20)
    policy = AssignRandom(4, np.random.default_rng(4))
    saved = json.loads(json.dumps(policy.state()))
    drawn = owners(policy, snapshot)
    other = AssignRandom(4, np.random.default_rng(5))
    other.load(saved)
    assert owners(other, snapshot) == drawn


def test_round_robin_keeps_a_query_on_one_thread_and_takes_queries_in_turn() -> None:
    chain = (Operator("source"), Operator("sink", ("source",)))
    topology = Topology.of([Query(name, chain) for name in "abc"], parallelism={("a", "sink"): 2})
    snapshot = Snapshot(topology, 0.0, {})
    assert owners(AssignRoundRobin(2), snapshot) == [0, 0, 0, 1, 1, 0, 0]


def test_load_balance_takes_the_heaviest_first() -> None:
    load = [2.0, 3.0, 7.0, 6.0, 5.0, 4.0]
    owner = owners(AssignLoadBalance(3), seen(load))
    assert busy(load, owner, 3).tolist() == [9, 9, 9]


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=7))
def test_load_balance_is_at_most_a_sixth_above_the_best_on_two_threads(load: list[float]) -> None:
    """Graham's bound on longest processing time first: 4/3 - 1/(3 P) of the optimum."""
    peak = busy(load, owners(AssignLoadBalance(2), seen(load)), 2).max()
    best = min(busy(load, list(owner), 2).max() for owner in product((0, 1), repeat=len(load)))
    assert peak <= 7 / 6 * best + 1e-9


@pytest.mark.parametrize("columns", [{}, {"cost": np.ones(7)}, {"cost": np.ones(7), "rate": np.full(7, np.nan)}])
@pytest.mark.parametrize("name", ["load-balance", "adaptive"])
def test_unknown_loads_are_spread_evenly(name: str, columns: dict[str, Floats]) -> None:
    policy = assigner(name, 3, np.random.default_rng(6))
    snapshot = Snapshot(alone(*"abcdefg"), 0.0, columns)
    assert sorted(counts(owners(policy, snapshot), 3)) == [2, 2, 3]


def test_unknown_and_idle_operators_are_dealt_out_from_the_least_busy_thread_on() -> None:
    owner = owners(AssignLoadBalance(2), seen([5.0, 3.0, math.nan, 0.0, math.inf]))
    assert owner == [0, 1, 1, 0, 1]


def test_a_product_too_large_for_a_float_is_an_unknown_load() -> None:
    columns = {"cost": np.array([1e308, 1.0, -1.0]), "rate": np.array([1e308, 1.0, 1.0])}
    assert len(owners(AssignLoadBalance(2), Snapshot(alone(*"abc"), 0.0, columns))) == 3


def test_adaptive_begins_as_load_balance() -> None:
    snapshot = seen([2.0, 3.0, 7.0, 6.0, 5.0, 4.0])
    assert owners(AssignAdaptive(3), snapshot) == owners(AssignLoadBalance(3), snapshot)


def test_adaptive_keeps_its_assignment_below_the_threshold() -> None:
    policy = AssignAdaptive(2)
    before = owners(policy, seen([1.0, 1.0, 1.0, 1.0]))
    uneven = [1.2 if owner == 0 else 0.9 for owner in before]
    assert owners(policy, seen(uneven)) == before
    assert "kept" in policy.decide(seen(uneven)).reason


def test_adaptive_moves_one_operator_where_one_is_enough() -> None:
    policy = AssignAdaptive(2)
    before = owners(policy, seen([1.0] * 8))
    load = [2.0 if owner == 0 else 1.0 for owner in before]
    after = owners(policy, seen(load))
    assert moved(before, after) == 1
    assert busy(load, after, 2).tolist() == [6, 6]


def test_adaptive_says_what_it_moved_and_why() -> None:
    policy = AssignAdaptive(2)
    before = owners(policy, seen([1.0] * 8))
    reason = policy.decide(seen([2.0 if owner == 0 else 1.0 for owner in before])).reason
    assert reason == "imbalance 1.33 -> 1.00, moved 1, placed 0 new"


def test_adaptive_does_not_swing_with_the_load() -> None:
    policy = AssignAdaptive(2)
    before = owners(policy, seen([1.0] * 8))
    high = [2.0 if owner == 0 else 1.0 for owner in before]
    low = [1.9 if owner == 0 else 1.0 for owner in before]
    settled = owners(policy, seen(high))
    assert [owners(policy, seen(load)) for load in (low, high, low, high)] == [settled] * 4


def test_adaptive_leaves_alone_what_moving_can_not_help() -> None:
    policy = AssignAdaptive(4)
    load = [100.0, 1.0, 1.0, 1.0, 1.0]
    before = owners(policy, seen(load))
    assert owners(policy, seen(load)) == before
    assert owners(policy, seen([90.0, 1.1, 0.9, 1.0, 1.0])) == before


def test_adaptive_parts_two_operators_that_are_each_too_much() -> None:
    policy = AssignAdaptive(3)
    policy.load({"owner": {"a.only[0]": 0, "b.only[0]": 0, "c.only[0]": 1, "d.only[0]": 2}})
    load = [10.0, 10.0, 1.0, 1.0]
    after = owners(policy, seen(load, alone(*"abcd")))
    assert busy(load, after, 3).max() <= 11


@given(
    st.lists(st.floats(0.5, 1.5), min_size=20, max_size=60),
    st.lists(st.floats(0.5, 1.5), min_size=60, max_size=60),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_adaptive_is_below_its_threshold_whenever_operators_are_many_and_small(
    first: list[float], second: list[float], threads: int, later: int
) -> None:
    policy = AssignAdaptive(threads)
    owners(policy, seen(first))
    policy.set_threads(later)
    load = second[: len(first)]
    after = busy(load, owners(policy, seen(load)), later)
    assert after.max() <= 1.2 * after.mean() + 1e-9


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.lists(st.floats(0, 100), min_size=20, max_size=20))
def test_adaptive_never_makes_the_highest_load_higher(first: list[float], second: list[float]) -> None:
    policy = AssignAdaptive(3)
    before = owners(policy, seen(first))
    load = second[: len(first)]
    after = owners(policy, seen(load))
    assert busy(load, after, 3).max() <= busy(load, before, 3).max() + 1e-9


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.lists(st.floats(0, 100), min_size=20, max_size=20))
def test_adaptive_comes_to_rest_under_a_steady_load(first: list[float], second: list[float]) -> None:
    policy = AssignAdaptive(3)
    owners(policy, seen(first))
    steady = seen(second[: len(first)])
    rounds = [owners(policy, steady) for _ in range(20)]
    assert rounds[-1] == rounds[-2]


def test_adaptive_uses_new_threads_and_moves_no_more_than_they_need() -> None:
    policy = AssignAdaptive(2)
    before = owners(policy, seen([1.0] * 40))
    policy.set_threads(4)
    after = owners(policy, seen([1.0] * 40))
    assert counts(after, 4) == [11, 11, 9, 9]
    assert moved(before, after) == 18


def test_adaptive_moves_only_the_operators_of_a_thread_that_is_gone() -> None:
    policy = AssignAdaptive(4)
    before = owners(policy, seen([1.0] * 12))
    policy.set_threads(3)
    after = owners(policy, seen([1.0] * 12))
    assert moved(before, after) == 3
    assert counts(after, 3) == [4, 4, 4]


def test_adaptive_knows_operators_by_name_when_queries_come_and_go() -> None:
    policy = AssignAdaptive(2)
    first = alone(*"abcd")
    before = dict(zip(first.ids, owners(policy, seen([1.0] * 4, first)), strict=True))
    second = alone(*"edcba")
    after = dict(zip(second.ids, owners(policy, seen([math.nan] + [1.0] * 4, second)), strict=True))
    assert {name: after[name] for name in before} == before


def test_adaptive_goes_on_from_its_saved_state() -> None:
    policy = AssignAdaptive(3)
    snapshot = seen([5.0, 4.0, 3.0, 2.0, 1.0])
    before = owners(policy, snapshot)
    other = AssignAdaptive(3)
    other.load(json.loads(json.dumps(policy.state())))
    assert owners(other, seen([4.9, 4.1, 2.9, 2.1, 1.0])) == before


@pytest.mark.parametrize("name", sorted(ASSIGNERS))
def test_an_assigner_is_found_by_either_of_its_names(name: str) -> None:
    rng = np.random.default_rng(7)
    made = assigner(name, 2, rng)
    assert made.name == f"assign-{name}"
    assert type(assigner(made.name, 2, rng)) is type(made)
    assert made.needs == ()


def test_unknown_names_and_impossible_numbers_are_refused_with_the_remedy() -> None:
    rng = np.random.default_rng(8)
    with pytest.raises(ConfigError, match=r"unknown assignment 'best' \(known: random, round-robin, load-balance, ad"):
        assigner("best", 2, rng)
    with pytest.raises(ConfigError, match=r"assign-random: can't assign to 0 threads \(use 1 or more\)"):
        assigner("random", 0, rng)
    with pytest.raises(ConfigError, match=r"settle can't be 1\.3 with threshold 1\.2"):
        AssignAdaptive(2, settle=1.3)
    policy = AssignRoundRobin(2)
    with pytest.raises(ConfigError, match="can't assign to -1 threads"):
        policy.set_threads(-1)
    assert policy.threads == 2


def test_what_waits_counts_as_load() -> None:
    queries = [Query(f"q{i}", (Operator("op"),)) for i in range(4)]
    topology = Topology.of(queries)
    busy = {"cost": np.full(4, 0.01), "rate": np.full(4, 50.0), "queue": np.array([300.0, 0.0, 0.0, 0.0])}
    owner = AssignLoadBalance(2).decide(Snapshot(topology, 0.0, busy)).scalar
    assert list(owner[1:] == owner[0]) == [False, False, False]


def test_time_spent_counts_as_load_with_what_its_tuples_do_not_explain() -> None:
    columns = {"cost": np.array([0.01, 0.01, math.nan]), "rate": np.array([50.0, 1.0, 1.0]), "queue": np.zeros(3)}
    snapshot = Snapshot(alone("a", "b", "c"), 0.0, {**columns, "busy": np.array([0.5, 0.9, 0.4])})
    assert load_of(snapshot).tolist() == [0.5, 0.9, 0.4]
    waiting = Snapshot(snapshot.topology, 0.0, {**snapshot.columns, "queue": np.array([100.0, 0.0, 0.0])})
    assert load_of(waiting).tolist() == [1.5, 0.9, 0.4]
