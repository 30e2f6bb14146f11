"""Taking out of an algorithm's level what it found when it took over."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.adaptive.inheritance import adjusted, carried


def test_what_is_carried_over_is_found_within_each_candidate() -> None:
    rng = np.random.default_rng(1)
    who = np.arange(200) % 2
    start = rng.uniform(0, 100, (200, 1))
    level = 0.6 * start[:, 0] + 30.0 * who
    assert carried(who, start, level)[0] == pytest.approx(0.6, rel=0.05)


def test_one_that_starts_from_its_own_high_level_is_not_excused_for_it() -> None:
    who = np.repeat([0, 1], 50)
    start = np.where(who == 0, 10.0, 100.0)[:, None]  # each stays at its own level, nothing varies within
    level = start[:, 0].copy()
    assert np.array_equal(adjusted(who, start, level), level)


def test_the_heir_of_a_long_queue_is_judged_as_if_it_had_found_the_usual_one() -> None:
    rng = np.random.default_rng(2)
    who = np.arange(300) % 3
    start = rng.uniform(0, 100, (300, 1))
    own = np.array([5.0, 6.0, 7.0])[who]
    fair = adjusted(who, start, own + 0.8 * start[:, 0])
    means = np.array([fair[who == k].mean() for k in range(3)])
    assert np.diff(means) == pytest.approx([1.0, 1.0], abs=0.3)
    assert fair[who == 0].std() < 2.0  # what was left of a scatter of 23


def test_an_unknown_start_leaves_the_level_and_an_unknown_level_stays_unknown() -> None:
    who = np.array([0, 0, 0, 0])
    start = np.array([[1.0], [np.nan], [3.0], [2.0]])
    level = np.array([1.0, 5.0, 3.0, np.nan])
    fair = adjusted(who, start, level)
    assert fair[1] == 5.0
    assert np.isnan(fair[3])
    assert np.isfinite(fair[:3]).all()
    assert np.isnan(adjusted(who, start, np.full(4, np.nan))).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=30))
def test_the_adjustment_is_finite_and_leaves_the_mean_of_all_alone(rows: list[tuple[int, float, float]]) -> None:
    who = np.array([row[0] for row in rows])
    start, level = np.array([[row[1]] for row in rows]), np.array([row[2] for row in rows])
    fair = adjusted(who, start, level)
    assert np.isfinite(fair).all()
    assert fair.mean() == pytest.approx(level.mean(), rel=1e-6, abs=1e-3)
