"""What is counted of kept rows is right for all rows, and says how sure it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.estimates import FEWEST, Estimate, of_sums, total
from treadle.model import Floats, Ints

ROWS = 2_000
RUNS, MANY = 100, 1000


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


def always_kept(random: np.random.Generator) -> tuple[Floats, Floats]:
    """Three in ten rows are always kept, where two in ten is the share: the others have the floor, a tenth of that."""
    return random.lognormal(2.0, 0.5, ROWS), np.where(np.arange(ROWS) % 10 < 3, 1.0, 0.02)


def refunds(random: np.random.Generator) -> tuple[Floats, Floats]:
    """Of payments and refunds, kept by their size; one in ten is of nothing."""
    values = random.lognormal(2.0, 0.5, ROWS) * np.where(np.arange(ROWS) % 10 == 0, -1.0, np.arange(ROWS) % 10 > 1)
    return values, np.clip(0.2 * np.abs(values) / np.abs(values).mean(), 0.02, 1.0)


@pytest.mark.parametrize("load", [uniform, skewed, bursty, always_kept, refunds])
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


def exploded(random: np.random.Generator) -> tuple[Floats, Floats, Ints]:
    """Ten rows made of each that was kept: one draw for all of them."""
    kept = random.random(ROWS // 10) < 0.3
    return random.uniform(5.0, 15.0, ROWS), np.repeat(np.where(kept, 1.0 / 0.3, 0.0), 10), np.arange(ROWS) // 10


def crossed(random: np.random.Generator) -> tuple[Floats, Floats, Ints]:
    """Each key has five rows on the left and four on the right, each of which was dropped on its own: 20 pairs."""
    keys = ROWS // 20
    left = np.repeat((random.random((keys, 5)) < 0.5) / 0.5, 4, axis=1)
    right = np.tile((random.random((keys, 4)) < 0.4) / 0.4, (1, 5))
    return random.exponential(10.0, ROWS), (left * right).ravel(), np.arange(ROWS) // 20


def by_key(random: np.random.Generator) -> tuple[Floats, Floats, Ints]:
    """Keys of one row and keys of up to twenty, of which all rows are kept or none."""
    key = np.repeat(np.arange(ROWS), random.integers(1, 21, ROWS))[:ROWS]
    kept = random.random(ROWS) < 0.4
    return random.exponential(10.0, ROWS), np.where(kept, 1.0 / 0.4, 0.0)[key], key


@pytest.mark.parametrize("load", [exploded, crossed, by_key])
def test_with_units_the_truth_lies_in_the_interval_where_rows_share_a_draw(load: object) -> None:
    assert callable(load)
    within = np.zeros((MANY, 4), dtype=bool)
    for seed in range(MANY):
        values, weight, unit = load(np.random.default_rng(seed))
        kept = weight > 0.0
        within[seed] = [
            estimate.low <= truth <= estimate.high
            for units in (None, unit[kept])
            for estimate, truth in (
                (total(weight[kept], units=units), ROWS),
                (total(weight[kept], values[kept], units), values.sum()),
            )
        ]
    alone_count, alone_sum, count, summed = within.mean(axis=0)
    assert max(alone_count, alone_sum) < 0.93
    assert min(count, summed) >= 0.93


@pytest.mark.parametrize("others", [50, 200, 500, 1000])
@pytest.mark.parametrize("keep", [0.1, 0.05])
def test_beside_always_kept_rows_few_others_have_a_true_interval_or_none(others: int, keep: float) -> None:
    """A thousand are always kept, the others with a tenth of the share: often none of them is left."""
    always, floor = 1000, keep / 10
    wrong = np.zeros(2)
    known = 0
    for seed in range(MANY):
        random = np.random.default_rng(seed)
        values = random.lognormal(2.0, 0.5, always + others)
        left = int(random.binomial(others, floor))
        weight = np.repeat([np.nextafter(1.0, 2.0), 1.0 / floor], [always, left])
        found = total(weight), total(weight, values[: always + left])
        known += not np.isnan(found[0].high)
        wrong += [each.high == each.low for each in found]
        truths = always + others, values.sum()
        wrong += [
            not (np.isnan(each.high) or each.low <= truth <= each.high)
            for each, truth in zip(found, truths, strict=True)
        ]
        assert all(np.isnan(each.low) == (left < FEWEST) for each in found)
    assert max(wrong) <= 0.05 * max(known, 20)


def test_a_sum_to_which_no_row_at_risk_adds_has_no_interval() -> None:
    """The column is 0 in all rows that were left: others may have been dropped."""
    found = total(np.full(100, 10.0), np.zeros(100))
    assert (found.value, np.isnan(found.low), np.isnan(found.high)) == (0.0, True, True)
    assert found.relative_error == math.inf


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_where_nothing_was_dropped_the_sum_is_exact(values: list[float]) -> None:
    found = total(np.ones(len(values)), values)
    assert found.low == found.value == found.high == pytest.approx(sum(values), abs=1e-3)


def test_the_relative_error_is_what_is_not_known() -> None:
    assert of_sums(100.0, 25.0, 25.0**2 / 1e9).relative_error == pytest.approx(0.098, abs=1e-3)
    assert Estimate(0.0, 0.0, 0.0).relative_error == 0.0
    assert np.isnan(total([]).high)  # all rows may have been dropped
