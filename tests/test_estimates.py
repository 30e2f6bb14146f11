"""What is counted of kept rows is right for all rows, and says how sure it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.estimates import Estimate, of_sums, total
from treadle.model import Floats

ROWS = 2_000
RUNS = 100


def uniform(random: np.random.Generator) -> tuple[Floats, Floats]:
    """Values that are much alike, kept with one probability."""
    return random.uniform(5.0, 15.0, ROWS), np.full(ROWS, 0.3)


def skewed(random: np.random.Generator) -> tuple[Floats, Floats]:
    """A few values that make most of the sum; the larger, the more likely kept."""
    values = random.lognormal(0.0, 1.5, ROWS)
    return values, np.clip(values / values.mean(), 0.05, 1.0)


def bursty(random: np.random.Generator) -> tuple[Floats, Floats]:
    """Probabilities that change with the load, as a controller changes them."""
    return random.exponential(10.0, ROWS), np.repeat([1.0, 0.2, 0.7, 0.1], ROWS // 4)


@pytest.mark.parametrize("load", [uniform, skewed, bursty])
def test_the_true_count_and_sum_lie_in_the_interval_in_at_least_93_of_100_runs(load: object) -> None:
    assert callable(load)
    counts = sums = 0
    for seed in range(RUNS):
        random = np.random.default_rng(seed)
        values, probability = load(random)
        kept = random.random(ROWS) < probability
        weight = 1.0 / probability[kept]
        counted, summed = total(weight), total(weight, values[kept])
        counts += counted.low <= ROWS <= counted.high
        sums += summed.low <= values.sum() <= summed.high
    assert counts >= 93
    assert sums >= 93


@given(st.lists(st.floats(-1e6, 1e6), max_size=50))
def test_where_nothing_was_dropped_the_sum_is_exact(values: list[float]) -> None:
    found = total(np.ones(len(values)), values)
    assert found.low == found.value == found.high == pytest.approx(sum(values), abs=1e-3)


def test_the_relative_error_is_what_is_not_known() -> None:
    assert of_sums(100.0, 25.0, 25.0**2 / 1e9).relative_error == pytest.approx(0.098, abs=1e-3)
    assert Estimate(0.0, 0.0, 0.0).relative_error == 0.0
    assert total([]) == (0.0, 0.0, 0.0)
