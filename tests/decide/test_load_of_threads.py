"""How assigners weigh operators, and which ones the adaptive assigner moves: few, and only where it helps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.assign import AssignAdaptive, AssignLoadBalance, AssignRandom, AssignRoundRobin, assigner
from treadle.errors import ConfigError
from treadle.model import Operator, Query, Topology
from treadle.values import Schedule, Snapshot


def seen(load: list[float], **columns: list[float]) -> Snapshot:
    """Operators of these loads: their cost, at one tuple per second unless the columns say otherwise."""
    topology = Topology.of(Query(f"q{number}", (Operator("op"),)) for number in range(len(load)))
    every = {"cost": load, "rate": [1.0] * len(load), **columns}
    return Snapshot(topology, 0.0, {name: np.array(values, dtype=np.float64) for name, values in every.items()})


def owners(schedule: Schedule) -> list[int]:
    return [int(number) for number in schedule.scalar]


def busy(load: list[float], owner: list[int], threads: int) -> list[float]:
    return [sum(each for each, thread in zip(load, owner, strict=True) if thread == t) for t in range(threads)]


def holding(*threads: list[float], **options: float) -> tuple[AssignAdaptive, Snapshot, list[float], list[int]]:
    """An adaptive assigner whose threads hold operators of these loads."""
    load = [each for thread in threads for each in thread]
    before = [number for number, thread in enumerate(threads) for _ in thread]
    policy, snapshot = AssignAdaptive(len(threads), **options), seen(load)
    policy.load({"owner": dict(zip(snapshot.topology.ids, before, strict=True))})
    return policy, snapshot, load, before


def after(*threads: list[float], **options: float) -> list[int]:
    policy, snapshot, *_ = holding(*threads, **options)
    return owners(policy.decide(snapshot))


def reason(*threads: list[float], **options: float) -> str:
    policy, snapshot, *_ = holding(*threads, **options)
    return policy.decide(snapshot).reason


def test_tuples_that_wait_count_as_if_they_had_to_be_done_within_a_second() -> None:
    rows: dict[str, list[float]] = {"rate": [50.0, 40.0, 30.0, 20.0], "queue": [0.0, 0.0, 60.0, 50.0]}
    schedule = AssignLoadBalance(2).decide(seen([0.01] * 4, **rows))
    assert owners(schedule) == [1, 0, 0, 1]
    assert schedule.reason == "imbalance 1.04 on 2 threads"  # 40 + 90 and 50 + 70
    assert owners(AssignLoadBalance(2).decide(seen([0.01] * 4, rate=rows["rate"]))) == [0, 1, 1, 0]


def test_a_queue_that_is_unknown_or_without_end_counts_as_empty() -> None:
    snapshot = seen([1.0, 1.0, 1.0], rate=[4.0, 3.0, 2.0], queue=[math.nan, math.inf, 0.0])
    assert owners(AssignLoadBalance(2).decide(snapshot)) == [0, 1, 1]


@pytest.mark.parametrize("missing", ["cost", "rate"])
def test_without_cost_or_rate_no_load_is_known(missing: str) -> None:
    snapshot = seen([9.0, 1.0, 1.0, 1.0], rate=[9.0, 1.0, 1.0, 1.0])
    columns = {name: column for name, column in snapshot.columns.items() if name != missing}
    schedule = AssignLoadBalance(2).decide(Snapshot(snapshot.topology, 0.0, columns))
    assert owners(schedule) == [0, 1, 0, 1]


def test_without_a_queue_nothing_waits() -> None:
    assert owners(AssignLoadBalance(2).decide(seen([5.0, 3.0], rate=[1.0, 2.0]))) == [1, 0]


def test_operators_without_load_are_spread_evenly_and_not_all_given_to_the_least_busy_thread() -> None:
    assert owners(AssignLoadBalance(2).decide(seen([5.0, 3.0, 0.0, 0.0, 0.0]))) == [0, 1, 1, 0, 1]


def test_loads_below_zero_are_unknown() -> None:
    assert owners(AssignLoadBalance(2).decide(seen([-9.0, 5.0, 3.0]))) == [1, 0, 1]


def test_reasons_say_how_even_the_threads_are() -> None:
    rng = np.random.default_rng(1)
    snapshot = seen([3.0, 1.0, 1.0])
    assert AssignRandom(2, rng).decide(snapshot).reason == "drawn for 2 threads"
    assert AssignRoundRobin(2).decide(snapshot).reason == "queries in turn on 2 threads"
    assert AssignLoadBalance(2).decide(snapshot).reason == "imbalance 1.20 on 2 threads"
    assert AssignLoadBalance(2).decide(seen([3.0, math.nan, 1.0])).reason == "imbalance 1.50 on 2 threads"
    assert AssignLoadBalance(2).decide(seen([0.0, 0.0])).reason == "imbalance 1.00 on 2 threads"
    assert AssignAdaptive(2).decide(snapshot).reason == "imbalance 1.20, kept, placed 3 new"
    assert reason([3.0, 1.0], [1.0, 1.0]) == "imbalance 1.33 -> 1.00, moved 1, placed 0 new"
    assert reason([], []) == "imbalance 1.00, kept, placed 0 new"


def test_nothing_moves_up_to_the_threshold() -> None:
    assert after([6.0, 6.0], [4.0, 4.0]) == [0, 0, 1, 1]
    assert reason([6.0, 6.0], [4.0, 4.0]).startswith("imbalance 1.20, kept")
    assert after([6.0, 6.1], [4.0, 4.0]) != [0, 0, 1, 1]
    assert after([6.0, 6.1], [4.0, 4.0], threshold=1.3) == [0, 0, 1, 1]


def test_one_operator_moves_that_is_as_light_as_is_enough() -> None:
    """15 of 8 on average: 6.2 must go to be at most 1.1 times the mean. 6.5 is the lightest that is enough."""
    assert after([1.0, 6.5, 7.5], [1.0]) == [0, 1, 0, 1]


def test_the_heaviest_go_first_and_the_last_is_as_light_as_is_enough() -> None:
    """24 of 12 on average: 10.8 must go. 8 is too little, and with 8 the lightest that is enough is 3."""
    assert after([8.0, 6.0, 5.0, 3.0, 2.0], []) == [1, 0, 0, 1, 0]


def test_where_settle_is_out_of_reach_operators_move_if_the_threshold_can_be_met() -> None:
    assert after([12.0, 1.0], [7.0]) == [0, 1, 1]  # from 1.3 to just 1.2 times the mean
    assert after([2.0, 2.0], [1.0]) == [0, 1, 1]  # a later attempt is as good, and not taken


def test_no_more_operators_are_taken_off_than_needed_and_the_light_ones_stay() -> None:
    assert after([], [], [4.0, 8.0, 3.0]) == [2, 0, 2]
    assert after([1.0, 5.0, 8.0], [], []) == [0, 0, 1]
    assert after([3.0], [6.0, 2.0]) == [0, 1, 0]
    assert after([8.0, 8.0], [], [1.0]) == [0, 1, 2]


def test_if_that_is_not_enough_more_are_taken_off_step_by_step() -> None:
    assert after([7.0, 7.0], [1.0, 5.0]) == [0, 1, 0, 1]
    assert after([8.0, 8.0], [3.0, 7.0]) == [0, 1, 0, 1]
    assert after([0.15, 0.45], [0.15]) == [1, 0, 1]


def test_operators_move_if_the_highest_load_falls_a_lot_though_it_stays_above_the_threshold() -> None:
    assert sorted(busy([10.0, 10.0, 1.0, 1.0], after([10.0, 10.0], [1.0], [1.0]), 3))[-1] <= 11.0
    assert after([10.0, 0.5], [1.0, 1.0], [1.0]) == [0, 0, 1, 1, 2]  # from 10.5 to 10 is too little
    assert after([10.0, 2.5], [1.0], [1.0]) in ([0, 1, 1, 2], [0, 2, 1, 2])
    assert after([4.0, 4.0], [], [], [], [], threshold=2.0, settle=1.0) == [0, 0]  # to half, and not below it


def test_options_must_be_one_or_more_and_in_order() -> None:
    AssignAdaptive(2, threshold=1.1, settle=1.0)
    for threshold, settle in ((1.2, 1.2), (1.2, 0.9), (1.0, 1.1)):
        with pytest.raises(ConfigError) as caught:
            AssignAdaptive(2, threshold=threshold, settle=settle)
        assert str(caught.value) == (
            f"assign-adaptive: settle can't be {settle:g} with threshold {threshold:g} "
            "(use 1 or more for both, and settle below threshold)"
        )
    with pytest.raises(ConfigError, match=r"^assign: unknown assignment 'x' \(known: random, round-robin, load-bal"):
        assigner("x", 2, np.random.default_rng(1))
    assert AssignAdaptive(1).threads == 1


def test_new_operators_go_to_the_threads_that_have_least_to_do() -> None:
    policy = AssignAdaptive(3)
    snapshot = seen([5.0, 3.0, 4.0, 0.5])
    policy.load({"owner": {snapshot.topology.ids[0]: 0, snapshot.topology.ids[1]: 1}})
    schedule = policy.decide(snapshot)
    assert owners(schedule) == [0, 1, 2, 1]
    assert schedule.reason.endswith("kept, placed 2 new")


def test_an_operator_without_a_known_load_weighs_as_much_as_the_mean_of_the_others() -> None:
    policy = AssignAdaptive(2)
    snapshot = seen([math.nan, 4.0, 2.0, 4.0])
    policy.load({"owner": dict(zip(snapshot.topology.ids, (0, 0, 1, 1), strict=True))})
    assert policy.decide(snapshot).reason == f"imbalance {(4 + 10 / 3) / (20 / 3):.2f}, kept, placed 0 new"


def test_operators_without_any_known_load_weigh_the_same() -> None:
    for load in (math.nan, 0.0):
        assert reason([load] * 5, [load]) == "imbalance 1.67 -> 1.00, moved 2, placed 0 new"


def test_an_operator_that_is_gone_is_forgotten_and_one_that_is_back_is_new() -> None:
    policy = AssignAdaptive(2)
    policy.decide(seen([1.0] * 4))
    assert policy.decide(seen([1.0] * 2)).reason.endswith("placed 0 new")
    assert policy.decide(seen([1.0] * 4)).reason.endswith("placed 2 new")
    assert set(policy.state()["owner"]) == set(seen([1.0] * 4).topology.ids)


def test_what_a_decision_returns_is_not_changed_by_later_ones() -> None:
    policy = AssignAdaptive(2)
    first = policy.decide(seen([1.0] * 8)).scalar
    kept = first.copy()
    policy.decide(seen([9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    policy.set_threads(1)
    policy.decide(seen([1.0] * 8))
    assert np.array_equal(first, kept)


loads = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0]), max_size=6), min_size=1, max_size=4)


@given(loads, st.sampled_from([(1.2, 1.1), (1.5, 1.0), (2.0, 1.5)]))
def test_operators_move_only_if_it_is_worth_it(threads: list[list[float]], options: tuple[float, float]) -> None:
    threshold, settle = options
    policy, snapshot, load, before = holding(*threads, threshold=threshold, settle=settle)
    moved = owners(policy.decide(snapshot))
    if moved != before:
        weights = load if any(load) else [1.0] * len(load)
        peak, old, mean = (max(busy(weights, moved, len(threads))), max(busy(weights, before, len(threads))),
                           sum(weights) / len(threads))  # fmt: skip
        assert old > threshold * mean
        assert peak <= threshold * mean + 1e-9 or peak < old * settle / threshold + 1e-9
