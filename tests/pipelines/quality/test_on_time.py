"""A query that is well is always on time, however its batches fall, and one that stalls is not within two cycles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.pipelines.quality.on_time import OnTime, Progress

CYCLE, WINDOW = 2.0, 3
RATE = 100.0


class Query:
    """Rows arrive at a constant rate. Each batch takes all that have arrived when it begins, until the query stalls."""

    def __init__(self, batch: float, stalls: float = np.inf) -> None:
        self.begins = np.arange(0.0, 100.0, batch)
        self.ends = self.begins + batch
        self.stalls = stalls

    def at(self, time: float) -> Progress:
        ended = self.ends <= min(time, self.stalls)
        planned = self.begins[ended]
        done = RATE * planned[-1] if planned.size else 0.0
        last = self.ends[ended][-1] if planned.size else 0.0
        figures = (done, RATE * time, float(ended.sum()), last)
        return Progress(*(np.array([figure]) for figure in figures))


def parts(query: Query, until: float, offset: float = 0.0) -> list[tuple[float, float]]:
    """After each cycle: when, and which part was done of what was due lately; nothing by a query that has stalled."""
    watched = OnTime(1, CYCLE, WINDOW)
    found = []
    for time in np.arange(offset, until, CYCLE).tolist():
        watched.look(time, query.at(time))
        found.append((time, 0.0 if watched.stalled[0] else float(watched.part[0])))
    return found


@given(st.floats(0.05, 2 * CYCLE), st.floats(0.1, CYCLE))
def test_a_query_that_keeps_up_is_on_time_in_each_cycle(batch: float, offset: float) -> None:
    assert all(part == pytest.approx(1.0) for _, part in parts(Query(batch), 60.0, offset)[8:])


@given(st.floats(0.05, CYCLE / 2), st.floats(0.1, CYCLE))
def test_a_query_that_stalls_shows_within_two_cycles(batch: float, offset: float) -> None:
    stalls = 20.0
    after = [part for time, part in parts(Query(batch, stalls), 40.0, offset) if time > stalls]
    assert after[1:] == [0.0] * len(after[1:])


@given(st.floats(0.1, CYCLE))
def test_a_query_in_real_time_that_stalls_shows_within_two_cycles(offset: float) -> None:
    stalls, watched, after = 20.0, OnTime(1, CYCLE, WINDOW), []
    for time in np.arange(offset, 40.0, CYCLE).tolist():
        passed = RATE * min(time, stalls)
        watched.look(time, Progress(*(np.array([each]) for each in (passed, RATE * time, passed, min(time, stalls)))))
        assert not watched.stalled[0] or time > stalls
        after += [bool(watched.stalled[0])] if time > stalls else []
    assert after[1:] == [True] * len(after[1:])


def test_a_pause_without_rows_makes_no_batch_long() -> None:
    query, watched = Query(0.5), OnTime(1, CYCLE, WINDOW)
    for time in (0.0, 2.0, 4.0):
        watched.look(time, query.at(time)._replace(came=query.at(time).done))
    after = query.at(60.0)
    watched.look(60.0, after._replace(batches=query.at(4.0).batches + 1))
    watched.look(62.0, query.at(62.0)._replace(done=after.done, batches=query.at(4.0).batches + 1, ended=after.ended))
    assert watched.stalled[0], "as one whose batches take half a second"


def test_after_a_pause_a_batch_that_takes_nearly_two_cycles_is_no_stall_but_one_that_never_ends_is() -> None:
    batch, watched = 1.9 * CYCLE, OnTime(1, CYCLE, WINDOW)
    query = Query(batch)

    def look(time: float, **seen: float) -> bool:
        watched.look(time, query.at(min(time, 40.0))._replace(**{name: np.array([at]) for name, at in seen.items()}))
        return bool(watched.stalled[0])

    for time in np.arange(0.0, 40.0, CYCLE).tolist():
        look(time)
    rows, number = RATE * 40.0, float(query.at(40.0).batches[0])
    for time in np.arange(40.0, 100.0, CYCLE).tolist():  # no rows for a minute
        look(time, came=rows, done=rows, batches=number, ended=40.0)
    waits = {"came": rows + 1, "done": rows, "batches": number, "ended": 40.0}
    assert not any(look(time, **waits) for time in (100.0, 102.0)), "its batch began after 98 s and takes 3.8 s"
    assert not look(104.0, came=rows + 2, done=rows + 1, batches=number + 1, ended=102.0)
    waits = {"came": rows + 2, "done": rows + 1, "batches": number + 1, "ended": 102.0}
    assert [look(time, **waits) for time in (106.0, 108.0)] == [False, True], "1.5 times as long as its batches"


def test_a_query_in_real_time_that_had_no_row_before_the_first_look_has_no_batch_as_long_as_the_machine_runs() -> None:
    watched = OnTime(1, CYCLE, WINDOW)
    for time, passed, at in (
        (5000.0, 0.0, 0.0),
        (5002.0, 100.0, 5001.9),
        (5004.0, 100.0, 5001.9),
        (5006.0, 100.0, 5001.9),
    ):
        watched.look(time, Progress(*(np.array([each]) for each in (passed, 100.0 * (time - 4999.0), passed, at))))
    assert watched.stalled[0]


def test_a_query_that_falls_behind_has_the_part_that_it_manages_and_more_while_it_catches_up() -> None:
    watched = OnTime(1, CYCLE, WINDOW)
    found = []
    for number in range(20):
        time = CYCLE * number
        done = RATE * time / 2 if number <= 10 else RATE * (10 + 2 * (time - 20.0))
        ended = Progress(*(np.array([each]) for each in (min(done, RATE * time), RATE * time, float(number), time)))
        watched.look(time, ended)
        found.append(float(watched.part[0]))
    assert found[4 + WINDOW : 10] == pytest.approx([0.5] * 3)
    assert found[12] > 1.0
    assert found[-1] == pytest.approx(1.0)


def test_of_a_query_that_has_moved_nothing_is_known_before_it_has_finished_rows_there() -> None:
    query, watched = Query(0.5, stalls=20.0), OnTime(1, CYCLE, WINDOW)
    for time in np.arange(0.0, 20.1, CYCLE).tolist():
        watched.look(time, query.at(time))
    assert watched.known.all()
    watched.restart(0, 20.5)
    watched.look(22.0, query.at(22.0))
    assert not watched.known.any()
    moved = query.at(24.0)._replace(done=np.array([2350.0]))
    watched.look(24.0, moved)
    assert watched.known.all()
    assert watched.part[0] >= 1.0  # it catches up


def test_where_nothing_comes_all_is_done() -> None:
    watched = OnTime(2, CYCLE, WINDOW)
    nothing = Progress(*(np.zeros(2) for _ in range(4)))
    for time in (0.0, 2.0):
        watched.look(time, nothing)
    assert watched.known.all()
    assert watched.part.tolist() == [1.0, 1.0]
