from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.observe.smooth import Smoother, realign

SECONDS = st.floats(1e-3, 30)
VALUES = st.floats(-1e6, 1e6)
TAUS = st.floats(1e-2, 100)


def one(value: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([value])


@given(TAUS, SECONDS, VALUES, VALUES)
def test_two_steps_equal_one_of_twice_the_length(tau: float, seconds: float, start: float, value: float) -> None:
    twice, once = Smoother(1, tau, 1e9), Smoother(1, tau, 1e9)
    for smoother in (twice, once):
        smoother.step(one(start), 0.0)
    twice.step(one(value), seconds)
    assert twice.step(one(value), seconds)[0] == pytest.approx(once.step(one(value), 2 * seconds)[0], abs=1e-6)


@given(TAUS, SECONDS, VALUES, VALUES)
def test_a_round_without_a_value_counts_as_time(tau: float, seconds: float, start: float, value: float) -> None:
    gap, straight = Smoother(1, tau, 1e9), Smoother(1, tau, 1e9)
    for smoother in (gap, straight):
        smoother.step(one(start), 0.0)
    gap.step(one(np.nan), seconds)
    assert gap.step(one(value), seconds)[0] == pytest.approx(straight.step(one(value), 2 * seconds)[0], abs=1e-6)


@given(TAUS, st.lists(st.tuples(VALUES, SECONDS), min_size=1, max_size=20))
def test_the_average_stays_between_the_lowest_and_the_highest_value(
    tau: float, steps: list[tuple[float, float]]
) -> None:
    smoother = Smoother(1, tau, 1e9)
    means = [smoother.step(one(value), seconds)[0] for value, seconds in steps]
    values = [value for value, _ in steps]
    assert min(values) - 1e-6 <= min(means) <= max(means) <= max(values) + 1e-6


@given(TAUS, VALUES, st.lists(SECONDS, max_size=10))
def test_a_constant_stays_exactly_what_it_is(tau: float, value: float, steps: list[float]) -> None:
    smoother = Smoother(1, tau, 1e9)
    assert all(smoother.step(one(value), seconds)[0] == value for seconds in [0.0, *steps])


def test_after_tau_seconds_about_63_percent_of_a_jump_are_seen() -> None:
    smoother = Smoother(1, 2.0, 60.0)
    smoother.step(one(0.0), 0.0)
    assert smoother.step(one(1.0), 2.0)[0] == pytest.approx(1 - np.exp(-1))


def test_the_first_known_value_is_taken_as_it_is() -> None:
    smoother = Smoother(2, 2.0, 60.0)
    assert np.isnan(smoother.step(np.array([np.nan, np.inf]), 0.0)).all()
    assert smoother.step(np.array([7.0, 8.0]), 0.01).tolist() == [7, 8]


@pytest.mark.parametrize("unknown", [np.nan, np.inf, -np.inf])
def test_an_unknown_value_keeps_the_last_average_until_it_is_forgotten(unknown: float) -> None:
    smoother = Smoother(1, 2.0, 10.0)
    smoother.step(one(5.0), 0.0)
    assert smoother.step(one(unknown), 6.0)[0] == 5
    assert smoother.step(one(unknown), 4.0)[0] == 5
    assert np.isnan(smoother.step(one(unknown), 0.1)[0])
    assert smoother.step(one(3.0), 0.1)[0] == 3


def test_an_average_that_grew_beyond_all_numbers_is_given_up_for_the_next_value() -> None:
    smoother = Smoother(1, 2.0, 10.0)
    with np.errstate(all="ignore"):
        for value in (1.5e308, -1.5e308, 1.0, 1.0):
            mean = smoother.step(one(value), 9.0)
    assert mean[0] == 1


def test_averages_are_forgotten_row_by_row_each_at_its_own_time() -> None:
    smoother = Smoother(2, 2.0, 10.0)
    smoother.step(np.array([1.0, 2.0]), 0.0)
    smoother.step(np.array([np.nan, 2.0]), 6.0)
    np.testing.assert_array_equal(smoother.step(np.array([np.nan, np.nan]), 6.0), [np.nan, 2.0])
    np.testing.assert_array_equal(smoother.step(np.array([np.nan, np.nan]), 3.0), [np.nan, 2.0])
    assert np.isnan(smoother.step(np.array([np.nan, np.nan]), 3.0)).all()


def test_without_a_time_constant_nothing_is_averaged() -> None:
    smoother = Smoother(1, 0.0, 10.0)
    assert [smoother.step(one(v), 1.0)[0] for v in (1e16, 1.0, np.nan, 0.1)] == [1e16, 1, 1, 0.1]


def test_rows_move_with_their_averages_and_their_ages() -> None:
    smoother = Smoother(2, 2.0, 10.0)
    smoother.step(np.array([1.0, 2.0]), 0.0)
    smoother.step(np.array([np.nan, 2.0]), 9.0)
    smoother.realign(np.array([1, -1, 0]))
    kept = smoother.step(np.array([np.nan, np.nan, np.nan]), 2.0)
    np.testing.assert_array_equal(kept, [2.0, np.nan, np.nan])


def test_realigning_from_nothing_gives_unknown_rows() -> None:
    assert np.isnan(realign(np.empty(0), np.array([-1, -1]))).all()
