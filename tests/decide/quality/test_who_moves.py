"""Which instances leave a worker that lacks CPU, and which worker takes them: in numbers that binary floats hold."""

from __future__ import annotations

import numpy as np

from treadle.decide.quality.moves import best_worker, leavers


def leaving(lacking: float, *instances: tuple[float, float]) -> list[int]:
    """Instances have a priority and a need."""
    return sorted(leavers(lacking, np.array([need for _, need in instances]), np.array([p for p, _ in instances])))


def test_of_one_priority_the_largest_stay_if_the_others_release_enough() -> None:
    assert leaving(0.5, (1, 0.25), (1, 0.25), (1, 0.5)) == [0, 1]
    assert leaving(0.25, (1, 0.25), (1, 0.5)) == [0]
    assert leaving(0.375, (1, 0.25), (1, 0.5)) == [1]


def test_of_several_priorities_the_highest_stay_if_the_others_release_enough() -> None:
    assert leaving(0.75, (1, 0.5), (2, 0.5), (2, 0.25)) == [0, 2]
    assert leaving(0.5, (1, 0.5), (2, 0.5)) == [0]


def test_those_that_need_nothing_stay_even_if_all_together_are_not_enough() -> None:
    assert leaving(5.0, (1, 0.5), (1, 0.0)) == [0]


def test_a_preferred_worker_is_taken_if_it_has_just_enough_and_of_several_the_one_with_most() -> None:
    free, everywhere = np.array([0.5, 0.75, 2.0]), np.ones(3, dtype=np.bool_)
    assert best_worker(free, 0.5, everywhere, [0]) == 0
    assert best_worker(np.array([0.75, 0.5, 2.0]), 0.5, everywhere, [0, 1]) == 0
    assert best_worker(free, 0.5, np.array([True, False, True]), [1]) == 2
    assert best_worker(free, 2.0, everywhere) == 2
