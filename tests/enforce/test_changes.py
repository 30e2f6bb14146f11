"""A changeset is the difference of two columns, and objects only for those who look."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.enforce import Change, diff
from treadle.errors import ConfigError

VALUES = st.sampled_from([np.nan, -1.0, 0.0, 1.0, 5.0])
COLUMNS = st.lists(st.tuples(VALUES, VALUES), max_size=20)


@given(COLUMNS)
def test_only_rows_that_are_known_and_differ_become_changes(pairs: list[tuple[float, float]]) -> None:
    targets = tuple(f"t{i}" for i in range(len(pairs)))
    wanted, current = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    naive = [
        Change(target, "nice", None if np.isnan(c) else c, w)
        for target, (w, c) in zip(targets, pairs, strict=True)
        if not np.isnan(w) and w != c
    ]
    assert list(diff(targets, wanted, current, knob="nice")) == naive


def test_texts_are_compared_too_and_none_leaves_them_as_they_are() -> None:
    wanted = np.array(["a", None, "b", "c"], dtype=np.object_)
    current = np.array(["a", "x", "x", None], dtype=np.object_)
    changes = diff(("t0", "t1", "t2", "t3"), wanted, current, knob="group")
    assert list(changes) == [Change("t2", "group", "x", "b"), Change("t3", "group", None, "c")]


def test_changes_can_be_indexed_and_cut() -> None:
    changes = diff(("a", "b", "c"), np.array([1.0, 2.0, 3.0]), np.zeros(3), knob="nice")
    assert changes[-1] == Change("c", "nice", 0.0, 3.0)
    assert [change.target for change in changes[:2]] == ["a", "b"]
    assert "Change(target='a'" in repr(changes)
    with pytest.raises(IndexError):
        changes[3]


def test_columns_that_do_not_fit_the_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match="knob 'nice': 2 wanted and 1 current values for 1 targets"):
        diff(("a",), np.zeros(2), np.zeros(1), knob="nice")


def test_a_diff_of_many_rows_costs_no_python_per_row() -> None:
    rows = 100_000
    targets = tuple(str(i) for i in range(rows))
    wanted = np.arange(rows, dtype=np.float64)
    start = time.thread_time()
    for _ in range(5):
        diff(targets, wanted, wanted, knob="nice")
    many = time.thread_time() - start
    start = time.thread_time()
    assert len([i for i, name in enumerate(targets) if i < 0 or name == ""]) == 0
    one_plain_loop = time.thread_time() - start
    assert many < 5 * one_plain_loop
