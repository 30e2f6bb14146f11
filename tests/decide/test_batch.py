"""A batch holds its slot for about the period, whatever a row costs and however that changes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.decide.batch import GROWTH, BatchSizer, batch_size
from treadle.errors import ConfigError

PERIOD = 0.2
BATCHES = st.lists(st.tuples(st.integers(0, 10**6), st.floats(1e-6, 1e3)), max_size=40)
FIXED = st.floats(1e-4, 0.5)
PER_ROW = st.floats(1e-7, 2e-3)


def run(sizer: BatchSizer, seconds: Callable[[int], float], batches: int, noise: random.Random | None = None) -> float:
    """Let a hop run as the sizer says; the median of what its last batches hold their slot for, without noise."""
    holds = []
    for _ in range(batches):
        rows = sizer.rows("hop")
        holds.append(seconds(rows))
        sizer.observe("hop", rows, seconds(rows) * (noise.lognormvariate(0, 0.1) if noise else 1.0))
    return median(holds[-batches // 3 :])


def about_right(hold: float, fixed: float) -> bool:
    """Not much below the period, nor above what keeps the fixed part at its share (or the longest hold)."""
    longer = min(max(PERIOD, fixed / 0.1), 4 * PERIOD)
    return 0.6 * PERIOD <= hold <= 1.6 * max(longer, fixed + PERIOD / 2)


@given(BATCHES, st.integers(1, 1000), st.integers(0, 10**6))
def test_rows_are_within_the_limits_and_grow_step_by_step(
    batches: list[tuple[int, float]], smallest: int, more: int
) -> None:
    sizer = BatchSizer(smallest=smallest, largest=smallest + more)
    reach = 0
    for rows, seconds in batches:
        if reach == rows == 0:
            continue  # nothing is known from a first batch without rows
        sizer.observe("hop", rows, seconds)
        reach = max(reach, rows)
        allowed = sizer.rows("hop")
        assert smallest <= allowed <= smallest + more
        assert allowed <= max(GROWTH * reach, sizer.first, smallest)
        cost = sizer.cost("hop")
        assert cost is not None
        assert cost.fixed >= 0
        assert cost.per_row > 0
        assert math.isfinite(cost.fixed + cost.per_row)


@given(BATCHES, st.floats(0.01, 10), st.floats(1, 10))
def test_a_longer_period_never_gives_fewer_rows(batches: list[tuple[int, float]], period: float, longer: float) -> None:
    short, long = BatchSizer(period), BatchSizer(period * longer)
    for rows, seconds in batches:
        short.observe("hop", rows, seconds)
        long.observe("hop", rows, seconds)
        assert short.rows("hop") <= long.rows("hop")


@settings(max_examples=50)
@given(FIXED, PER_ROW, st.integers(0, 2**32))
def test_a_noisy_hop_settles_at_the_period(fixed: float, per_row: float, seed: int) -> None:
    hold = run(BatchSizer(PERIOD), lambda rows: fixed + per_row * rows, 60, random.Random(seed))
    reachable = fixed + per_row * 1_000_000 > PERIOD
    assert about_right(hold, fixed) or not reachable


@settings(max_examples=50)
@given(FIXED, PER_ROW, st.integers(0, 2**32))
def test_it_recovers_when_rows_become_ten_times_as_dear_and_cheap_again(
    fixed: float, per_row: float, seed: int
) -> None:
    sizer, noise = BatchSizer(PERIOD, largest=10**9), random.Random(seed)
    run(sizer, lambda rows: fixed + per_row * rows, 60, noise)
    assert about_right(run(sizer, lambda rows: fixed + 10 * per_row * rows, 20, noise), fixed)
    assert about_right(run(sizer, lambda rows: fixed + per_row * rows, 20, noise), fixed)


def test_batches_of_one_size_leave_the_split_as_it_was_known() -> None:
    sizer = BatchSizer(PERIOD)
    run(sizer, lambda rows: 0.03 + 1e-5 * rows, 60)
    for _ in range(200):
        sizer.observe("hop", 5000, 0.08)
    cost = sizer.cost("hop")
    assert cost is not None
    assert cost.fixed == pytest.approx(0.03, rel=0.5)
    assert cost.fixed + 5000 * cost.per_row == pytest.approx(0.08, rel=0.05)


def test_one_long_pause_makes_only_one_batch_small() -> None:
    sizer = BatchSizer(PERIOD)
    run(sizer, lambda rows: 0.001 + 1e-5 * rows, 40)
    usual = sizer.rows("hop")
    sizer.observe("hop", usual, 20 * PERIOD)
    hold = run(sizer, lambda rows: 0.001 + 1e-5 * rows, 6)
    assert hold == pytest.approx(PERIOD, rel=0.5)


def test_a_hop_whose_fixed_part_is_longer_than_any_hold_still_gets_on() -> None:
    sizer = BatchSizer(PERIOD)
    run(sizer, lambda rows: 2.0 + 1e-5 * rows, 60)
    assert sizer.rows("hop") >= 100


def test_a_large_fixed_part_makes_batches_longer_but_not_longer_than_longest() -> None:
    sizer = BatchSizer(PERIOD, overhead_share=0.1)
    hold = run(sizer, lambda rows: 0.1 + 1e-5 * rows, 60)
    assert 2 * PERIOD < hold <= 4 * PERIOD * 1.2


def test_an_unknown_hop_starts_small_and_a_forgotten_one_again() -> None:
    sizer = BatchSizer()
    assert sizer.rows("hop") == 1000
    assert sizer.cost("hop") is None
    sizer.observe("hop", 1000, 0.002)
    assert 1000 < sizer.rows("hop") <= 4000
    sizer.forget("hop")
    sizer.forget("never seen")
    assert sizer.rows("hop") == 1000


def test_hops_are_apart() -> None:
    sizer = BatchSizer()
    sizer.observe("dear", 1000, 10.0)
    assert sizer.rows("dear") < 1000 == sizer.rows("other")


@pytest.mark.parametrize(
    ("rows", "seconds"), [(-1, 1.0), (0, 1.0), (10, 0.0), (10, -1.0), (10, math.nan), (10, math.inf)]
)
def test_what_can_not_be_is_left_out(rows: int, seconds: float) -> None:
    sizer = BatchSizer()
    sizer.observe("hop", rows, seconds)
    assert sizer.cost("hop") is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: BatchSizer(0.0),
        lambda: BatchSizer(math.nan),
        lambda: BatchSizer(0.2, 0.0),
        lambda: BatchSizer(0.2, 1.5),
        lambda: BatchSizer(smallest=0),
        lambda: BatchSizer(smallest=10, largest=9),
        lambda: BatchSizer(longest=0.1),
        lambda: BatchSizer(first=0),
    ],
)
def test_limits_that_make_no_sense_are_refused(make: Callable[[], BatchSizer]) -> None:
    with pytest.raises(ConfigError, match="batch size"):
        make()


def test_a_user_may_set_the_rows_of_every_batch_and_go_back_to_seconds() -> None:
    sizer = BatchSizer()
    sizer.observe("hop", 1000, 10.0)
    by_time = sizer.rows("hop")
    for said, rows in (("1000 rows", 1000), (" 1 row ", 1), ("2_000_000 rows", 2_000_000), ("3,000rows", 3000)):
        sizer.set_size(batch_size(said))
        assert (sizer.rows("hop"), sizer.rows("other"), str(sizer.size)) == (rows, rows, f"{rows} rows")
    sizer.set_size(batch_size("200ms"))
    assert (sizer.rows("hop"), sizer.size) == (by_time, 0.2)


@pytest.mark.parametrize("wrong", ["0 rows", "rows", "-1 rows", "1.5 rows", 0, -1.0, None, True, [5]])
def test_what_is_neither_a_time_nor_rows_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="batch"):
        batch_size(wrong)
