"""Eq. 1 and Eq. 2 of AMoS by hand-computed numbers, and their bounds by hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.adaptive import Synopsis, algorithm_score, parse_objectives, statistic_score
from treadle.decide.adaptive.score import update

values = st.floats(-1e12, 1e12)
runs = st.lists(st.lists(values, min_size=1, max_size=5), min_size=1, max_size=8)


def summed(numbers: list[float]) -> Synopsis:
    total = Synopsis.of(numbers[0])
    for number in numbers[1:]:
        total = total.merge(Synopsis.of(number))
    return total


def test_a_synopsis_keeps_count_mean_and_extremes() -> None:
    assert summed([2.0, 4.0, 9.0]) == Synopsis(3.0, 5.0, 2.0, 9.0)


def test_equation_1_by_hand() -> None:
    history = summed([10.0, 20.0, 30.0, 40.0])  # mean 25, range 30
    assert statistic_score(31.0, history, None, 0.25) == pytest.approx(6 / 30)
    assert statistic_score(31.0, history, -0.4, 0.25) == pytest.approx(0.2 * 0.75 - 0.4 * 0.25)


def test_the_first_score_of_an_algorithm_has_no_decay() -> None:
    history = summed([0.0, 10.0])
    assert statistic_score(10.0, history, None, 0.4) == statistic_score(10.0, history, None, 0.0) == 0.5


def test_a_history_without_spread_scores_nothing() -> None:
    assert statistic_score(7.0, summed([7.0, 7.0]), None, 0.3) == 0.0
    assert statistic_score(7.0, summed([7.0, 7.0]), 0.5, 0.3) == pytest.approx(0.15)


def test_equation_2_by_hand() -> None:
    objectives = parse_objectives("min total_queue 0.75, max output_rate 0.25")
    assert algorithm_score(objectives, {"total_queue": -0.4, "output_rate": 0.2}) == pytest.approx(0.3 + 0.05 + 1)
    assert algorithm_score(objectives, {"total_queue": 0.4, "output_rate": -0.2}) == pytest.approx(1 - 0.35)


def test_what_is_unknown_neither_helps_nor_harms() -> None:
    assert algorithm_score(parse_objectives("min latency, max output_rate"), {}) == 1.0


def test_the_history_covers_the_current_algorithm_and_forgets_nothing_by_default() -> None:
    history = update(update(None, summed([1.0, 3.0])), summed([10.0]))
    assert history == summed([1.0, 3.0, 10.0])


def test_with_a_discount_old_extremes_fade() -> None:
    history = Synopsis(10.0, 50.0, 0.0, 1000.0)
    faded = update(history, summed([50.0]), discount=0.5)
    assert faded == Synopsis(6.0, 50.0, 25.0, 525.0)


@given(runs, st.floats(0.1, 1.0), st.floats(0.0, 0.49))
def test_scores_stay_within_their_bounds_for_any_history(
    runs: list[list[float]], discount: float, decay: float
) -> None:
    history: Synopsis | None = None
    z: float | None = None
    for run in runs:
        current = summed(run)
        history = update(history, current, discount)
        assert history.low <= history.mean <= history.high
        assert history.low <= current.mean <= history.high
        z = statistic_score(current.mean, history, z, decay)
        assert -1.0 <= z <= 1.0
        for objective in ("min x", "max x"):
            assert 0.0 <= algorithm_score(parse_objectives(objective), {"x": z}) <= 2.0


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(-1.0, 1.0)))
def test_swapping_the_direction_of_all_objectives_mirrors_the_score(z: dict[str, float]) -> None:
    up = algorithm_score(parse_objectives("max a 1, max b 2, max c 3, max d 4"), z)
    down = algorithm_score(parse_objectives("min a 1, min b 2, min c 3, min d 4"), z)
    assert up + down == pytest.approx(2.0)
