from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from treadle.engines.spark.rest import Job
from treadle.engines.spark.shuffles import LINGER, Began, Hop, Shuffles


def job(number: int, *stages: int) -> Job:
    return Job(number, f"run-{number}", "q", "id", stages)


def hops(shuffles: Shuffles, *numbers: int) -> list[Hop | None]:
    return [shuffles.get(number) for number in numbers]


def seen(*numbers: int) -> dict[int, Began]:
    """Shuffles whose threads began in this order."""
    return {number: (0, place) for place, number in enumerate(numbers)}


def test_shuffles_of_a_job_are_in_the_order_of_its_stages() -> None:
    shuffles, one = Shuffles(), job(0, 4, 5, 6)
    shuffles.assign(seen(8, 7), [one, one], 0.0, complete=True)
    assert hops(shuffles, 7, 8) == [Hop(one, 0), Hop(one, 1)]


def test_nothing_is_matched_before_all_threads_are_there() -> None:
    shuffles, one = Shuffles(), job(0, 0, 1, 2)
    shuffles.assign(seen(1), [one], 0.0, complete=True)
    assert hops(shuffles, 1) == [None]
    shuffles.assign(seen(0, 1), [one], 0.0, complete=False)
    assert hops(shuffles, 0, 1) == [None, None]
    shuffles.assign(seen(0, 1), [one], 0.0, complete=True)
    assert hops(shuffles, 0, 1) == [Hop(one, 0), Hop(one, 1)]


def test_what_is_left_of_the_last_batch_is_not_matched_to_the_next() -> None:
    shuffles, early, late = Shuffles(), job(0, 0, 1, 2), job(3, 3, 4, 5)
    shuffles.assign(seen(0, 1), [early], 0.0, complete=True)
    shuffles.assign(seen(0, 1, 2), [late], 1.0, complete=True)
    assert hops(shuffles, 0, 1, 2) == [None, None, None]
    shuffles.assign(seen(1, 2, 3), [late], 1.1, complete=True)
    assert hops(shuffles, 1, 2, 3) == [None, Hop(late, 0), Hop(late, 1)]


def test_threads_of_a_batch_that_nobody_saw_have_lower_numbers() -> None:
    shuffles, late = Shuffles(), job(7, 10, 11)
    shuffles.assign(seen(3, 4), [late], 0.0, complete=True)
    assert hops(shuffles, 3, 4) == [None, Hop(late, 0)]


def test_a_query_without_shuffles_waits_for_none() -> None:
    shuffles, alone, other = Shuffles(), job(0, 0), job(1, 1, 2)
    shuffles.assign(seen(5), [alone, other], 0.0, complete=True)
    assert hops(shuffles, 5) == [Hop(other, 0)]


def test_of_queries_that_begin_at_once_the_threads_tell_which_was_planned_first() -> None:
    first, second = job(0, 0, 1, 2), job(3, 3, 4)
    shuffles = Shuffles()
    shuffles.assign(seen(0, 1, 2), [first, second], 0.0, complete=True)
    assert hops(shuffles, 0, 1, 2) == [Hop(first, 0), Hop(first, 1), Hop(second, 0)]
    shuffles = Shuffles()
    shuffles.assign(seen(2, 1, 0), [first, second], 0.0, complete=True)  # planned second, but submitted first
    assert hops(shuffles, 0, 1, 2) == [Hop(second, 0), Hop(first, 0), Hop(first, 1)]


def test_a_wrong_match_is_put_right_when_its_threads_end_before_their_job() -> None:
    long, short = job(0, 0, 1, 2), job(3, 3, 4)
    shuffles = Shuffles()
    shuffles.assign(seen(0, 1, 2), [long, short], 0.0, complete=True)
    assert hops(shuffles, 0) == [Hop(long, 0)]
    shuffles.assign(seen(1, 2), [long], 1.0, complete=True)  # it was the short one's
    shuffles.assign(seen(1, 2), [long], 1.0 + LINGER, complete=True)
    assert hops(shuffles, 1, 2) == [Hop(long, 0), Hop(long, 1)]


@st.composite
def jobs_and_plans(draw: st.DrawFn) -> tuple[list[Job], dict[int, Hop]]:
    """Jobs that were planned in some order, and what belongs to what."""
    jobs, stage = [], 0
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)):
        jobs.append(job(stage, *range(stage, stage + size)))
        stage += size
    planned = draw(st.permutations(jobs))
    right = [Hop(each, position) for each in planned for position in range(len(each.stages) - 1)]
    return jobs, dict(enumerate(right, start=100))


def in_order(jobs: Iterable[Job], right: dict[int, Hop]) -> dict[int, Began]:
    """Threads begin as the jobs were submitted."""
    order = {each.number: place for place, each in enumerate(jobs)}
    return {shuffle: (order[hop.job.number], shuffle) for shuffle, hop in right.items()}


@given(jobs_and_plans())
def test_in_whichever_order_jobs_were_planned_each_gets_its_own(case: tuple[list[Job], dict[int, Hop]]) -> None:
    jobs, right = case
    shuffles = Shuffles()
    shuffles.assign(in_order(jobs, right), jobs, 0.0, complete=True)
    found = {shuffle: shuffles.get(shuffle) for shuffle in right}
    assert len(set(found.values())) == len(right)
    sizes = {len(each.stages) for each in jobs}
    if len(sizes) == 1:  # else two orders may agree equally well
        assert found == right


def test_shuffles_of_jobs_that_are_over_are_forgotten() -> None:
    shuffles, first, second = Shuffles(), job(0, 0, 1), job(2, 2, 3)
    shuffles.assign(seen(0), [first], 0.0, complete=True)
    shuffles.assign(seen(0, 1), [second], 0.1, complete=True)
    assert hops(shuffles, 0, 1) == [None, Hop(second, 0)]
