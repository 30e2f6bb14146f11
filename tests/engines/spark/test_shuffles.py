from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treadle.engines.spark.rest import Job
from treadle.engines.spark.shuffles import Hop, Shuffles


def job(number: int, *stages: int) -> Job:
    return Job(number, f"run-{number}", "q", "id", stages)


def hops(shuffles: Shuffles, *numbers: int) -> list[Hop | None]:
    return [shuffles.get(number) for number in numbers]


def test_shuffles_of_a_job_are_in_the_order_of_its_stages() -> None:
    shuffles, one = Shuffles(), job(0, 4, 5, 6)
    shuffles.assign([8, 7], [one, one], complete=True)
    assert hops(shuffles, 7, 8) == [Hop(one, 0), Hop(one, 1)]


def test_nothing_is_matched_before_all_threads_are_there() -> None:
    shuffles, one = Shuffles(), job(0, 0, 1, 2)
    shuffles.assign([1], [one], complete=True)
    assert hops(shuffles, 1) == [None]
    shuffles.assign([0, 1], [one], complete=False)
    assert hops(shuffles, 0, 1) == [None, None]
    shuffles.assign([0, 1], [one], complete=True)
    assert hops(shuffles, 0, 1) == [Hop(one, 0), Hop(one, 1)]


def test_what_is_left_of_the_last_batch_is_not_matched_to_the_next() -> None:
    shuffles, late = Shuffles(), job(7, 10, 11)
    shuffles.assign([3, 4], [late], complete=True)
    assert hops(shuffles, 3, 4) == [None, Hop(late, 0)]


def test_a_query_without_shuffles_waits_for_none() -> None:
    shuffles, alone, other = Shuffles(), job(0, 0), job(1, 1, 2)
    shuffles.assign([5], [alone, other], complete=True)
    assert hops(shuffles, 5) == [Hop(other, 0)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_each_job_gets_as_many_as_it_has_edges(sizes: list[int]) -> None:
    jobs, stage = [], 0
    for number, size in enumerate(sizes):
        jobs.append(job(number, *range(stage, stage + size)))
        stage += size
    count = sum(size - 1 for size in sizes)
    shuffles = Shuffles()
    shuffles.assign(range(100, 100 + count), jobs, complete=True)
    found = [hop for number in range(100, 100 + count) if (hop := shuffles.get(number))]
    assert len(found) == count
    assert found == [Hop(each, position) for each in jobs for position in range(len(each.stages) - 1)]


def test_shuffles_of_jobs_that_are_over_are_forgotten() -> None:
    shuffles, first, second = Shuffles(), job(0, 0, 1), job(1, 2, 3)
    shuffles.assign([0], [first], complete=True)
    shuffles.assign([0, 1], [second], complete=True)
    assert hops(shuffles, 0, 1) == [Hop(first, 0), Hop(second, 0)]
    shuffles.assign([1], [second], complete=True)
    assert hops(shuffles, 0, 1) == [None, Hop(second, 0)]
