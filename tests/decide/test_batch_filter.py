"""The fit of a batch's cost, against the textbook's Kalman filter in matrices, and the sizes that follow from it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.batch import BatchSizer
from treadle.errors import ConfigError
from treadle.model import Floats

BATCHES = st.lists(st.tuples(st.integers(0, 20_000), st.floats(0.001, 5.0)), min_size=1, max_size=12)


class Reference:
    """State (fixed, per row) with a covariance matrix; the noise is a fifth of a batch's seconds."""

    def __init__(self, rows: int, seconds: float) -> None:
        fixed = min(0.05, seconds / 2)
        self.state: Floats = np.array([fixed, (seconds - fixed) / rows])
        self.covariance: Floats = np.diag([(seconds / 2) ** 2, self.state[1] ** 2])
        self.add(rows, seconds)

    def add(self, rows: int, seconds: float) -> None:
        sees = np.array([1.0, rows])
        expected = float(sees @ self.state)
        off = seconds - expected
        noise = (0.2 * max(seconds, expected)) ** 2
        covariance = self.covariance + np.diag([(0.02 * expected) ** 2, (0.05 * self.state[1]) ** 2])
        if off**2 > 9 * (sees @ covariance @ sees + noise):
            covariance = covariance + np.diag([(0.2 * off) ** 2, (off / max(rows, 1)) ** 2])
        gain = covariance @ sees / (sees @ covariance @ sees + noise)
        least = np.array([0.0, 0.1 * self.state[1]])
        self.state = np.maximum(self.state + gain * off, least)
        self.covariance = covariance - np.outer(gain, sees @ covariance)


@given(BATCHES)
def test_the_fit_is_a_kalman_filter(batches: list[tuple[int, float]]) -> None:
    sizer, reference = BatchSizer(), None
    for rows, seconds in batches:
        sizer.observe("hop", rows, seconds)
        if reference is None:
            if rows == 0:
                assert sizer.cost("hop") is None
                continue
            reference = Reference(rows, seconds)
        else:
            reference.add(rows, seconds)
        cost = sizer.cost("hop")
        assert cost is not None
        assert cost.fixed == pytest.approx(reference.state[0], rel=1e-3, abs=1e-6)
        assert cost.per_row == pytest.approx(reference.state[1], rel=1e-3, abs=1e-12)


def known(fixed: float, per_row: float, **options: Any) -> BatchSizer:
    """A sizer that has seen hundreds of batches of this cost, of many sizes."""
    sizer = BatchSizer(**options)
    for number in range(400):
        rows = (100, 1000, 8000, 3000, 20000, 50)[number % 6]
        sizer.observe("hop", rows, fixed + per_row * rows)
    return sizer


def test_a_batch_is_as_large_as_the_period_allows() -> None:
    cost = known(0.01, 1e-5).cost("hop")
    assert cost is not None
    assert cost.fixed == pytest.approx(0.01, rel=0.05)
    assert cost.per_row == pytest.approx(1e-5, rel=0.05)
    assert known(0.01, 1e-5).rows("hop") == pytest.approx((0.2 - 0.01) / 1e-5, rel=0.05)
    assert known(0.01, 1e-5, period=0.5).rows("hop") == pytest.approx((0.5 - 0.01) / 1e-5, rel=0.05)


def test_a_large_fixed_cost_is_at_most_its_share_of_a_batch_that_is_not_the_longest() -> None:
    assert known(0.05, 1e-5).rows("hop") == pytest.approx((0.5 - 0.05) / 1e-5, rel=0.15)
    assert known(0.05, 1e-5, overhead_share=0.2).rows("hop") == pytest.approx((0.25 - 0.05) / 1e-5, rel=0.15)
    assert known(0.5, 1e-5).rows("hop") == pytest.approx((0.8 - 0.5) / 1e-5, rel=0.15)
    assert known(0.05, 1e-5, longest=0.3).rows("hop") == pytest.approx((0.3 - 0.05) / 1e-5, rel=0.15)
    assert known(2.0, 1e-5).rows("hop") == pytest.approx(0.1 / 1e-5, rel=0.15)  # half a period at least


def test_a_batch_is_at_most_four_times_the_largest_before_it_but_the_first_size_is_always_allowed() -> None:
    sizer = BatchSizer(period=1000.0, first=500)
    assert sizer.rows("hop") == 500
    for rows, most in ((10, 500), (200, 800), (800, 3200), (50, 3200)):
        sizer.observe("hop", rows, 0.001)
        assert sizer.rows("hop") == most


def test_sizes_are_within_the_limits() -> None:
    assert known(0.01, 1e-5, largest=300).rows("hop") == 300
    assert known(0.01, 1e-5, smallest=30_000).rows("hop") == 30_000
    assert BatchSizer(largest=70).rows("hop") == 70
    assert BatchSizer(smallest=5000).rows("hop") == 5000
    assert BatchSizer(smallest=1, largest=1).rows("hop") == 1


def test_without_other_options_it_is_as_documented() -> None:
    sizer = BatchSizer()
    assert (sizer.period, sizer.overhead_share, sizer.longest) == (0.2, 0.1, 0.8)
    assert (sizer.smallest, sizer.largest, sizer.first) == (1, 1_000_000, 1000)


def test_another_period_keeps_its_ratio_to_the_longest() -> None:
    sizer = BatchSizer(0.2, longest=0.6)
    sizer.set_size(0.5)
    assert sizer.period == 0.5
    assert sizer.longest == pytest.approx(1.5)


def test_while_batches_are_of_one_size_one_in_four_is_a_probe_of_another_size() -> None:
    sizer = BatchSizer()
    sizes = []
    for _ in range(12):
        sizes.append(sizer.rows("hop"))
        sizer.observe("hop", 1000, 0.1)
    usual = max(sizes)
    probes = [number for number, size in enumerate(sizes) if number and size < 0.6 * usual]
    assert probes == [1, 5, 9]
    assert all(sizes[number] == pytest.approx(usual / 4, rel=0.6) for number in probes)


@pytest.mark.parametrize(("rows", "seconds", "probe"), [(8, 0.15, 3), (7, 0.15, 21), (1, 0.15, 3), (1, 1.0, 2)])
def test_a_probe_is_a_quarter_of_the_usual_size_or_twice_as_large_where_batches_are_too_small_to_divide(
    rows: int, seconds: float, probe: int
) -> None:
    """After one batch 0.05 s count as fixed, and the other 0.15 s of the period are for rows: 12, 10.5, 1.5, 0.16."""
    sizer = BatchSizer(first=1)
    sizer.observe("hop", rows, seconds)
    assert sizer.rows("hop") == probe


def test_a_probe_is_a_part_of_a_batch_once_batches_are_large_enough() -> None:
    sizer, sizes = BatchSizer(first=1), list[int]()
    for rows, seconds in [(4, 0.06)] + [(40, 0.15)] * 4:
        sizer.observe("hop", rows, seconds)
        sizes.append(sizer.rows("hop"))
    assert sizes[-1] == pytest.approx(sizes[-2] / 4, abs=1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"period": 0.0}, "period can't be 0.0"),
        ({"period": math.inf, "longest": math.inf}, "period can't be inf"),
        ({"longest": 0.1}, "longest can't be 0.1"),
        ({"longest": math.inf}, "longest can't be inf"),
        ({"overhead_share": 0.0}, "overhead_share can't be 0.0"),
        ({"overhead_share": 1.01}, "overhead_share can't be 1.01"),
        ({"smallest": 0}, "rows can't be from 0 to 1000000"),
        ({"smallest": 3, "largest": 2}, "rows can't be from 3 to 2"),
        ({"first": 0}, "first can't be 0"),
    ],
)
def test_limits_are_refused_with_the_remedy(options: dict[str, Any], says: str) -> None:
    remedy = "use seconds above 0, longest not below the period, a share up to 1, and 1 row or more"
    with pytest.raises(ConfigError) as caught:
        BatchSizer(**options)
    assert str(caught.value) == f"batch size: {says} ({remedy})"


def test_the_ends_of_the_limits_are_accepted() -> None:
    sizer = BatchSizer(0.3, 1.0, 1, 1, longest=0.3, first=1)
    assert sizer.rows("hop") == 1
