"""Moves that let more be done: only where it is worth it, and at nobody's cost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.quality.moves import place, relief

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


def test_minima_of_those_that_are_there_count_in_cores_and_may_fill_the_worker() -> None:
    whole, least, worker = np.array([0.9, 0.9, 0.2]), np.array([0.3, 0.3, 0.1]), np.array([0, 0, 1])
    for room in (0.6, 0.4):  # what both need at least: 0.1 and 0.3
        found = relief(whole, least, worker, np.array([0.9, room]))
        assert found is not None
        assert found[:2] == (0, 1)
    assert relief(whole, least, worker, np.array([0.9, 0.39])) is None


def test_what_just_is_worth_it_is_done() -> None:
    found = relief(np.array([0.5, 0.5]), np.zeros(2), np.array([0, 0]), np.array([0.5, 0.25]), worth=0.25)
    assert found == (0, 1, 0.25)


class TestPlace:
    def test_each_goes_where_most_is_left(self) -> None:
        assert place(np.array([0.5, 0.5, 0.5]), np.array([0.9, 1.2])).tolist() == [1, 0, 1]
        assert place(np.array([2.0]), np.array([0.9, 1.2])).tolist() == [1]

    def test_it_goes_to_a_worker_that_it_prefers_while_there_is_enough(self) -> None:
        free = np.array([0.5, 0.9, 2.0])
        assert place(np.array([0.5]), free, [[0]]).tolist() == [0]
        assert place(np.array([0.5]), free, [[0, 1]]).tolist() == [1]  # of those, most is left there
        assert place(np.array([0.5]), np.array([0.9, 0.6, 2.0]), [[0, 1]]).tolist() == [0]
        assert place(np.array([0.51]), free, [[0]]).tolist() == [2]
        assert place(np.array([0.5, 0.5]), free, [[0], [0]]).tolist() == [0, 2]
        assert place(np.array([0.5, 0.5]), free, [[0]]).tolist() == [0, 2]


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
