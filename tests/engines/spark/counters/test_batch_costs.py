"""A line through what batches cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engines.spark.counters.batch_costs import LAST, BatchCosts

ROWS = st.floats(1.0, 1e6)
SECONDS = st.floats(1e-6, 1e3)


@given(st.lists(st.tuples(ROWS, SECONDS), min_size=1, max_size=2 * LAST))
def test_both_parts_are_no_less_than_nothing_and_fit_the_mean(batches: list[tuple[float, float]]) -> None:
    costs = BatchCosts()
    for rows, seconds in batches:
        costs.add(rows, seconds)
    fixed, per_row = costs.fit()
    last = batches[-LAST:]
    mean_rows, mean_seconds = (sum(column) / len(last) for column in zip(*last, strict=True))
    assert per_row >= 0.0
    assert fixed >= -1e-9 * mean_seconds
    assert fixed + per_row * mean_rows == pytest.approx(mean_seconds)


def test_one_batch_says_nothing_of_a_row() -> None:
    costs = BatchCosts()
    assert math.isnan(costs.fit()[0])
    costs.add(10.0, 2.0)
    assert costs.fit() == (2.0, 0.0)


def test_batches_of_different_sizes_tell_the_parts_apart() -> None:
    costs = BatchCosts()
    for rows in (10.0, 1000.0, 200.0, 5000.0):
        costs.add(rows, 0.5 + 0.001 * rows)
    fixed, per_row = costs.fit()
    assert per_row == pytest.approx(0.001, rel=0.02)
    assert fixed == pytest.approx(0.5, rel=0.1)
