from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from treadle.engines.spark.queries.rest import Job
from treadle.engines.spark.threads.shuffles import TICK, Hop, Shuffles

BEGAN = 1_800_000_000.0


def job(number: int, *stages: int, at: float = 1.0) -> Job:
    """Submitted so many seconds after the beginning."""
    return Job(number, f"run-{number}", "q", "id", stages, number, BEGAN + at)


def hops(shuffles: Shuffles, *numbers: int) -> list[Hop | None]:
    return [shuffles.get(number) for number in numbers]


def seen(**times: float) -> dict[int, float]:
    """When the threads of shuffles began: s7=1.5."""
    return {int(name[1:]): BEGAN + time for name, time in times.items()}


def test_shuffles_of_a_job_are_in_the_order_of_its_stages() -> None:
    shuffles, one = Shuffles(), job(0, 4, 5, 6)
    shuffles.assign(seen(s8=1.1, s7=1.2), [one, one], complete=True)
    assert hops(shuffles, 7, 8) == [Hop(one, 0), Hop(one, 1)]


def test_nothing_is_matched_before_all_threads_are_there_and_all_jobs_known() -> None:
    shuffles, one = Shuffles(), job(0, 0, 1, 2)
    shuffles.assign(seen(s1=1.1), [one], complete=True)
    assert hops(shuffles, 1) == [None]
    both = seen(s0=1.1, s1=1.1)
    shuffles.assign(both, [one], complete=False)
    assert hops(shuffles, 0, 1) == [None, None]
    shuffles.assign(both, [one._replace(submitted=0.0)], complete=True)
    assert hops(shuffles, 0, 1) == [None, None]
    shuffles.assign(both, [one], complete=True)
    assert hops(shuffles, 0, 1) == [Hop(one, 0), Hop(one, 1)]


def test_what_is_left_of_the_last_batch_is_not_matched_to_the_next() -> None:
    shuffles, early, late = Shuffles(), job(0, 0, 1, 2), job(3, 3, 4, 5, at=2.0)
    shuffles.assign(seen(s0=1.1, s1=1.1), [early], complete=True)
    shuffles.assign(seen(s0=1.1, s1=1.1, s2=2.1), [late], complete=True)
    assert hops(shuffles, 0, 1, 2) == [None, None, None]
    shuffles.assign(seen(s1=1.1, s2=2.1, s3=2.1), [late], complete=True)
    assert hops(shuffles, 1, 2, 3) == [None, Hop(late, 0), Hop(late, 1)]


def test_a_query_without_shuffles_waits_for_none() -> None:
    shuffles, alone, other = Shuffles(), job(0, 0), job(1, 1, 2)
    shuffles.assign(seen(s5=1.1), [alone, other], complete=True)
    assert hops(shuffles, 5) == [Hop(other, 0)]


def test_of_queries_that_begin_at_once_nothing_is_guessed_until_one_of_them_ends() -> None:
    shuffles, long, short = Shuffles(), job(0, 0, 1, 2), job(3, 3, 4, at=1.05)
    after = job(5, 5, 6, at=9.0)
    shuffles.assign(seen(s0=1.1, s1=1.1, s2=1.2, s3=9.1), [long, short, after], complete=True)
    assert hops(shuffles, 0, 1, 2, 3) == [None, None, None, Hop(after, 0)]
    shuffles.assign(seen(s0=1.1, s2=1.2, s3=9.1), [long, after], complete=True)
    assert hops(shuffles, 0, 2, 3) == [Hop(long, 0), Hop(long, 1), Hop(after, 0)]


def test_a_wrong_match_is_taken_back_when_its_threads_end_before_their_job() -> None:
    shuffles, one = Shuffles(), job(0, 0, 1, 2)
    shuffles.assign(seen(s0=1.1, s1=1.1), [one], complete=True)
    shuffles.assign(seen(s1=1.1), [one], complete=True)
    assert hops(shuffles, 0, 1) == [None, None]


@st.composite
def jobs_and_shuffles(draw: st.DrawFn) -> tuple[list[Job], dict[int, Hop], dict[int, float]]:
    """Jobs of all sizes, planned in any order and even at once; what belongs to what; when threads began."""
    gaps = draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5))
    jobs: list[Job] = []
    for number, gap in enumerate(gaps):
        size = draw(st.integers(1, 4))
        at = gap + (jobs[-1].submitted - BEGAN if jobs else 0.0)
        jobs.append(job(10 * number, *range(10 * number, 10 * number + size), at=at))
    order = draw(st.permutations([each for each in jobs for _ in each.stages[1:]]))
    right: dict[int, Hop] = {}
    began: dict[int, float] = {}
    for shuffle, each in enumerate(order, start=100):
        right[shuffle] = Hop(each, sum(hop.job is each for hop in right.values()))
        began[shuffle] = each.submitted + draw(st.floats(0.0, 1.0)) - draw(st.floats(0.0, TICK / 2))
    return jobs, right, began


@given(jobs_and_shuffles())
def test_whatever_is_matched_is_right(case: tuple[list[Job], dict[int, Hop], dict[int, float]]) -> None:
    jobs, right, began = case
    shuffles = Shuffles()
    shuffles.assign(began, jobs, complete=True)
    found = {shuffle: shuffles.get(shuffle) for shuffle in right}
    assert all(hop is None or hop == right[shuffle] for shuffle, hop in found.items())
    ends = {each: max((began[s] for s, hop in right.items() if hop.job is each), default=0.0) for each in jobs}
    if all(ends[one] + 2 * TICK < other.submitted for one, other in pairwise(jobs)):
        assert found == right
