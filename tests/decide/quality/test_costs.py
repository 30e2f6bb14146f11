"""What a row costs is told from what it is mixed with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.quality.costs import Costs


def learn(rows: float, batches: float, cycles: int, seed: int = 1) -> Costs:
    """Loads that vary, as shedding and batches make them."""
    random = np.random.default_rng(seed)
    costs = Costs(1)
    for _ in range(cycles):
        per_second, runs = random.uniform(100, 1000), random.uniform(1, 10)
        cpu = (rows * per_second + batches * runs) * random.uniform(0.98, 1.02)
        costs.update(np.array([per_second]), np.array([runs]), np.array([cpu]))
    return costs


@given(st.floats(1e-5, 1e-2), st.floats(0.0, 0.1))
def test_batches_and_rows_are_told_apart(row: float, batch: float) -> None:
    costs = learn(row, batch, 60)
    whole = 500 * row + 5 * batch
    assert 500 * costs.per_row[0] == pytest.approx(500 * row, abs=0.1 * whole)
    assert 5 * costs.per_batch[0] == pytest.approx(5 * batch, abs=0.15 * whole)


def test_where_nothing_varies_all_is_for_the_rows() -> None:
    costs = Costs(1)
    for _ in range(20):
        costs.update(np.array([100.0]), np.array([1.0]), np.array([0.5]))
    assert costs.per_row[0] == pytest.approx(0.005, rel=0.05)


def test_a_task_that_gets_no_rows_keeps_what_was_learnt() -> None:
    costs = learn(1e-3, 0.05, 60)
    before = costs.per_row[0]
    for _ in range(10):
        costs.update(np.zeros(1), np.array([8.0]), np.array([0.4]))
    assert costs.per_row[0] == pytest.approx(before, rel=0.1)


def test_before_its_first_row_a_task_costs_nothing() -> None:
    costs = Costs(2)
    costs.update(np.array([0.0, 10.0]), np.array([5.0, 1.0]), np.array([0.3, 0.1]))
    assert costs.per_row.tolist() == [0.0, pytest.approx(0.01, rel=0.1)]
