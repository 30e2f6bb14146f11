"""Rows that wait came between the looks that first saw them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from treadle.pipelines.gating.arrival_history import ArrivalHistory


def test_a_row_came_between_the_looks_that_first_saw_it() -> None:
    arrivals = ArrivalHistory()
    assert math.isnan(arrivals.came(0))
    for at, count in ((10.0, 100), (12.0, 100), (14.0, 300), (16.0, math.nan), (13.0, 900)):
        arrivals.note(at, count)
    assert arrivals.latest == 14
    assert arrivals.came(0) == 10  # seen first then, however old
    assert arrivals.came(100) == 12
    assert arrivals.came(200) == 13
    assert arrivals.came(300) == 14


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1), st.integers(2, 9))
def test_later_rows_never_came_earlier(steps: list[tuple[int, int]], keep: int) -> None:
    arrivals, at, count = ArrivalHistory(keep), 0, 0
    for passed, more in steps:
        at, count = at + passed, count + more
        arrivals.note(at, count)
    came = [arrivals.came(row) for row in range(count + 1)]
    assert came == sorted(came)
    assert came[-1] <= at
