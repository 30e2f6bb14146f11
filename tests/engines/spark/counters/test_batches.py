"""Queries in micro-batches: rows, CPU and backlog from what a driver and its running tasks count."""

from __future__ import annotations

import math

import numpy as np
import pytest

from treadle.engines.spark.agent.reports import Counts, Task
from treadle.engines.spark.counters.batches import BatchQueries, BatchReading
from treadle.observe.graph import TRACE

RUN, PID, THREAD = "run-1", 7, 40
SECOND = 1_000_000_000


def query(**columns: int) -> tuple[Task, list[int]]:
    values = {
        "in": 0,
        "out": 0,
        "asked": 0,
        "left": 0,
        "left-by": -1,
        "cpu": 0,
        "unread": 0,
        "batches": 0,
        "jobs": 0,
        "running": 0,
        **columns,
    }
    names = tuple(name.replace("_by_", "-by:").replace("_", ":") for name in values)
    return Task(-1, THREAD, names), list(values.values())


def task(stage: int, partition: int, **columns: int) -> tuple[Task, list[int]]:
    return Task(stage, partition, tuple(name.replace("_", ":") for name in columns)), list(columns.values())


def counts(time: float, *rows: tuple[Task, list[int]]) -> Counts:
    return Counts(time, tuple(row for row, _ in rows), np.array([value for _, values in rows for value in values]))


class AttachedEngine:
    """All tasks of stages below 100 are the query's."""

    def __init__(self) -> None:
        self.batches = BatchQueries(lambda task: RUN if task.stage < 100 else "other", lambda *_: RUN)

    def read(self, *readings: Counts) -> BatchReading:
        for each in readings:
            self.batches.update(PID, each)
        return self.batches.read()[RUN]


def test_rows_are_those_of_batches_that_are_done_and_of_tasks_that_have_ended_or_run() -> None:
    row = query(**{"in": 100, "out": 60, "left": 5, "left-by": 9, "taken_0": 30, "taken_by_0": 8})
    running = task(3, 0, metric_8=7, metric_9=2), task(3, 1, metric_8=1, metric_9=1)
    others = task(200, 0, metric_8=1000, metric_9=1000)
    found = AttachedEngine().read(counts(1.0, row, *running, others))
    assert (found.tuples_in, found.tuples_out) == (100 + 30 + 8, 60 + 5 + 3)


def test_rows_never_go_back_while_the_report_of_a_batch_is_awaited() -> None:
    followed = AttachedEngine()
    before = followed.read(counts(1.0, query(**{"in": 10, "out": 4, "taken_0": 30, "taken_by_0": 8, "left": 9})))
    assert (before.tuples_in, before.tuples_out) == (40, 13)
    assert followed.read(counts(1.1, query(**{"in": 10, "out": 4, "taken_0": 0, "taken_by_0": -1})))[:2] == (40, 13)
    assert followed.read(counts(1.2, query(**{"in": 41, "out": 14, "taken_0": 0, "taken_by_0": -1})))[:2] == (41, 14)


def test_a_sink_that_does_not_say_what_it_was_given_leaves_rows_out_unknown() -> None:
    assert math.isnan(AttachedEngine().read(counts(1.0, query(out=-1))).tuples_out)


def test_cpu_is_that_of_jobs_that_are_over_and_of_tasks_that_have_ended_or_run() -> None:
    followed = AttachedEngine()
    first = counts(1.0, query(jobs=1, running=2 * SECOND), task(3, 0, cpu=SECOND))
    assert followed.read(first)[2] == pytest.approx(3.0)
    assert followed.read(first).works
    found = followed.read(counts(1.2, query(cpu=3 * SECOND)))
    assert found.cpu_time == pytest.approx(3.0)
    assert not found.works
    assert followed.read(counts(1.3, query(cpu=3 * SECOND, running=SECOND))).cpu_time == pytest.approx(4.0)


def test_jobs_that_nobody_saw_count_with_what_spark_says_of_them() -> None:
    """What they have used may be known only some readings after the report of their batch."""
    followed = AttachedEngine()
    followed.read(counts(0.1, query()))
    for at, columns in enumerate(({"unread": 1}, {"unread": 1}, {"cpu": 2 * SECOND}, {"cpu": 2 * SECOND})):
        found = followed.read(counts(0.2 + at / 10, query(**{"in": 100, "batches": 1}, **columns)))
    assert found.cpu_time == pytest.approx(2.0)
    assert found.cost == pytest.approx(0.02), "nothing is known of what waits"


def test_a_batch_of_which_nobody_knows_what_it_used_costs_not_nothing() -> None:
    followed = AttachedEngine()
    for at in range(4):
        found = followed.read(counts(0.1 * at, query(**{"in": 100 * at, "batches": at})))
    assert math.isnan(found.cost)


def test_two_batches_between_two_readings_are_two() -> None:
    followed, offsets = AttachedEngine(), {"committed_0": 400, "latest_0": 500, "asked": SECOND}
    for at, batches in enumerate((0, 2, 2, 4, 4, 6, 6)):
        columns = {"in": 100 * batches, "batches": batches, "cpu": batches * SECOND, **offsets}
        found = followed.read(counts(0.1 * at, query(**columns)))
    assert found.batch_cost + 100 * found.cost == pytest.approx(1.0)


def test_another_agent_goes_on_where_the_one_before_ended() -> None:
    followed = AttachedEngine()
    followed.read(counts(1.0, query(**{"in": 500, "out": 50, "cpu": SECOND, "batches": 5})))
    followed.read(counts(2.0, query()))
    found = followed.read(counts(3.0, query(**{"in": 30, "out": 3, "cpu": SECOND // 2, "batches": 1})))
    assert (found.tuples_in, found.tuples_out, found.cpu_time) == (530, 53, 1.5)
    assert found.selectivity == pytest.approx(0.1)


def test_a_query_that_drops_all_its_rows_is_known_to() -> None:
    followed = AttachedEngine()
    followed.read(counts(1.0, query()))
    assert followed.read(counts(2.0, query(**{"in": 500, "batches": 1}))).selectivity == TRACE


def test_what_waits_is_what_has_come_and_no_batch_is_done_with() -> None:
    followed = AttachedEngine()
    for second in range(1, 4):  # each second it asks, and hears of 100 more rows
        asked = {"asked": second * SECOND, "committed_0": 100 * (second - 1), "latest_0": 100 * second}
        found = followed.read(counts(float(second), query(**asked)))
        assert found.queue == pytest.approx(100.0)
    found = followed.read(counts(3.5, query(asked=3 * SECOND, committed_0=200, latest_0=300)))
    assert found.queue == pytest.approx(150.0), "half a second's rows have come since it last asked"
    assert found.heard == 100.0
    assert found.head_age == pytest.approx(1.5), "row 200 came when 200 were there"
    found = followed.read(counts(3.5, query(asked=3 * SECOND, committed_0=300, latest_0=300)))
    assert found.queue == pytest.approx(50.0)
    assert found.head_age == pytest.approx(0.5)


def test_where_nothing_comes_any_more_nothing_waits() -> None:
    followed = AttachedEngine()
    for moment in range(1, 100):
        row = query(asked=moment * SECOND // 10, committed_0=min(moment, 20), latest_0=min(moment, 20))
        found = followed.read(counts(moment / 10 + 0.05, row))
    assert found.queue == 0.0
    assert found.head_age == 0.0


def test_a_backlog_that_no_offset_tells_is_unknown() -> None:
    assert math.isnan(AttachedEngine().read(counts(1.0, query())).queue)
    unread = query(asked=1, committed_0=-1, latest_0=5)
    assert math.isnan(AttachedEngine().read(counts(1.0, unread)).queue), "no batch is done yet"


def test_a_query_that_has_stopped_is_no_longer_there() -> None:
    followed = AttachedEngine()
    followed.read(counts(1.0, query()))
    followed.batches.update(PID, counts(2.0, task(3, 0, cpu=1)))
    assert followed.batches.read() == {}
    followed.batches.keep([])
    assert followed.batches.read() == {}


def test_what_a_row_and_a_batch_cost_is_learnt_from_whole_batches() -> None:
    """A batch uses the CPU for a second, and a hundredth for each row; half of the rows come out."""
    followed, rows_in, cpu = AttachedEngine(), 0, 0
    for number, rows in enumerate((100, 300, 50, 200, 400)):
        offsets = {"committed_0": rows_in, "latest_0": rows_in + rows, "asked": number * SECOND}
        before = {"in": rows_in, "out": rows_in // 2, "batches": number}
        followed.read(counts(number + 0.1, query(**before, **offsets, cpu=cpu, running=SECOND // 2)))
        rows_in, cpu = rows_in + rows, cpu + SECOND + rows * SECOND // 100
        followed.read(counts(number + 0.5, query(**before, **offsets, cpu=cpu)))
        after = {"in": rows_in, "out": rows_in // 2, "batches": number + 1}
        found = followed.read(counts(number + 0.7, query(**after, **{**offsets, "committed_0": rows_in}, cpu=cpu)))
    assert found.selectivity == pytest.approx(0.5)
    assert found.cost == pytest.approx(0.01, rel=0.1)
    assert found.batch_cost == pytest.approx(1.0, rel=0.2)


def test_where_it_is_not_known_what_waits_the_fixed_part_is_in_the_cost() -> None:
    followed = AttachedEngine()
    followed.read(counts(0.1, query(cpu=SECOND)))
    found = followed.read(counts(0.2, query(**{"in": 100, "batches": 1}, cpu=SECOND)))
    assert found.cost == pytest.approx(0.01)
    assert math.isnan(found.batch_cost)
