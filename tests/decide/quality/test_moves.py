"""Moves that let more be done: only where it is worth it, and at nobody's cost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.quality.moves import relief

CPU = st.floats(0.01, 1.0)


def test_the_smaller_of_two_that_help_alike_goes_to_the_worker_that_was_added() -> None:
    found = relief(np.array([0.7, 0.6]), np.array([0.3, 0.3]), np.array([0, 0]), np.array([0.9, 0.9]))
    assert found is not None
    assert found[:2] == (1, 1)
    assert found[2] > 0.39


def test_nobody_goes_where_those_that_are_there_would_lose_their_minimum() -> None:
    whole, least, worker = np.array([0.9, 0.9, 0.2]), np.array([0.5, 0.5, 0.2]), np.array([0, 0, 1])
    assert relief(whole, least, worker, np.array([0.9, 0.6])) is None


def test_a_worker_on_which_nobody_is_is_used_also_by_one_that_would_need_two() -> None:
    found = relief(np.array([1.0, 1.0]), np.array([1.0, 1.0]), np.array([0, 0]), np.array([0.9, 0.9]))
    assert found == (0, 1, 0.9)


def test_a_worker_that_others_keep_busy_draws_nobody() -> None:
    assert relief(np.array([0.7, 0.6]), np.array([0.3, 0.3]), np.array([0, 0]), np.array([0.9, 0.05])) is None


@given(
    st.lists(st.tuples(CPU, st.floats(0.0, 1.0), st.integers(0, 2)), min_size=1, max_size=8),
    st.tuples(CPU, CPU, CPU),
)
def test_what_is_gained_is_what_is_gained(items: list[tuple[float, float, int]], room: tuple[float, ...]) -> None:
    whole, part, worker = (np.array(column) for column in zip(*items, strict=True))
    available = np.array(room)
    found = relief(whole, whole * part, worker, available)
    if found is None:
        return
    instance, target, gain = found
    assert gain >= 0.1
    served = [
        np.minimum(np.bincount(at, weights=whole, minlength=3), available).sum() for at in (worker, worker.copy())
    ]
    moved = worker.copy()
    moved[instance] = target
    served[1] = np.minimum(np.bincount(moved, weights=whole, minlength=3), available).sum()
    assert np.isclose(served[1] - served[0], gain)
