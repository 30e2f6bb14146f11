from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treadle.engines.spark.counters.handover import Counters
from treadle.model import Ints


def rows(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


def fresh(count: int) -> Counters:
    counters = Counters()
    counters.realign(np.full(count, -1, dtype=np.int64))
    return counters


def test_only_what_a_thread_does_for_an_instance_counts_for_it() -> None:
    counters = fresh(2)
    counters.add(("a",), np.array([100.0]), rows(0))
    assert counters.add(("a",), np.array([103.0]), rows(0))[0] == 3.0
    counters.add(("a",), np.array([104.0]), rows(1))  # it changed hands
    found = counters.add(("a",), np.array([109.0]), rows(1))
    assert found.tolist() == [3.0, 5.0]


def test_a_row_that_nobody_worked_for_is_unknown() -> None:
    counters = fresh(2)
    found = counters.add(("a",), np.array([1.0]), rows(0))
    assert found[0] == 0.0
    assert np.isnan(found[1])


def test_rows_keep_their_counters_when_they_move() -> None:
    counters = fresh(2)
    counters.add(("a", "b"), np.array([0.0, 0.0]), rows(0, 1))
    counters.add(("a", "b"), np.array([1.0, 2.0]), rows(0, 1))
    counters.realign(rows(1, -1, 0))
    found = counters.add(("a", "b"), np.array([1.5, 2.0]), rows(2, 0))
    assert found[[0, 2]].tolist() == [2.0, 1.5]


def test_a_thread_that_has_ended_takes_nothing_back() -> None:
    counters = fresh(1)
    counters.add(("a",), np.array([5.0]), rows(0))
    counters.add(("a",), np.array([9.0]), rows(0))
    assert counters.add(("a",), np.array([np.nan]), rows(0)).tolist() == [4.0]
    assert counters.add((), np.empty(0), rows()).tolist() == [4.0]
    assert counters.add(("b",), np.array([50.0]), rows(0)).tolist() == [4.0]


STEP = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.floats(0, 100)), max_size=4, unique_by=lambda s: s[0]
)


@given(st.lists(STEP, max_size=12))
def test_no_counter_ever_goes_back(steps: list[list[tuple[str, int, float]]]) -> None:
    counters, before = fresh(3), np.zeros(3)
    for step in steps:
        members = tuple(name for name, _, _ in step)
        found = counters.add(
            members, np.array([v for _, _, v in step], dtype=np.float64), rows(*(r for _, r, _ in step))
        )
        known = np.where(np.isnan(found), 0.0, found)
        assert (known >= before).all()
        before = known
