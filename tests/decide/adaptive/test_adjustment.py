"""Adjusting levels for the state at the start, and the range on which scores are measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.adaptive.inheritance import adjusted, carried
from treadle.decide.adaptive.score import Synopsis, normalised
from treadle.model import Floats, Ints

STARTS = st.lists(st.tuples(st.none() | st.floats(0.0, 50.0), st.none() | st.floats(0.0, 50.0)), min_size=4, max_size=9)


def who(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


def levels(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def test_a_unit_at_the_start_raises_the_level_by_the_slope_within_candidates_less_a_doubt() -> None:
    start = levels(1.0, 3.0, 7.0)[:, None]
    slope = carried(who(0, 0, 1), start, levels(10.0, 14.0, 50.0))
    assert slope.tolist() == pytest.approx(
        [4.0 / (2.0 * (1.0 + 4.0 / 3.0))]
    )  # sum dx dy = 4, sum dx^2 = 2, 3 intervals


def test_a_slope_does_not_depend_on_how_large_other_columns_are() -> None:
    small, level = levels(1.0, 3.0, 2.0, 6.0), levels(10.0, 14.0, 11.0, 21.0)
    alone = carried(who(0, 0, 0, 0), small[:, None], level)
    beside = carried(who(0, 0, 0, 0), np.column_stack([np.full(4, 1e12), small]), level)
    assert beside.tolist() == pytest.approx([0.0, *alone])


@given(STARTS)
def test_an_unknown_start_is_the_mean_of_the_known_ones(starts: list[tuple[float | None, float | None]]) -> None:
    candidate = who(*(number % 2 for number in range(len(starts))))
    start = np.array([[np.nan if value is None else value for value in row] for row in starts])
    level = np.arange(len(starts), dtype=np.float64) ** 2
    filled = start.copy()
    for column in filled.T:
        known = column[~np.isnan(column)]
        column[np.isnan(column)] = known.mean() if len(known) else 0.0
    assert adjusted(candidate, start, level).tolist() == pytest.approx(adjusted(candidate, filled, level).tolist())


def test_levels_are_as_if_all_had_started_from_the_mean() -> None:
    start, level = levels(1.0, 3.0, 8.0)[:, None], levels(10.0, 14.0, 50.0)
    slope = float(carried(who(0, 0, 1), start, level)[0])
    assert adjusted(who(0, 0, 1), start, level).tolist() == pytest.approx([10 + 3 * slope, 14 + slope, 50 - 4 * slope])


def test_the_fraction_is_of_the_range_however_small_and_at_most_one() -> None:
    history = Synopsis(4.0, 5.0, 4.9, 5.1)
    assert normalised(levels(5.0, 5.05, 4.9, 9.0, -9.0), history).tolist() == pytest.approx(
        [0.0, 0.25, -0.5, 1.0, -1.0]
    )
    assert normalised(levels(7.0), Synopsis(4.0, 5.0, 5.0, 5.0)).tolist() == [0.0]
