"""One query as its promise needs it: what is read from Spark's progress and from samples of the CPU."""

from __future__ import annotations

import math
import time

import pytest

from treadle.attachment.quality.query import CYCLE, Done, Query
from treadle.decide.quality import Promise
from treadle.engines.spark.agent.shedder import Report
from treadle.engines.spark.queries.progress import Progress

KAFKA = "KafkaV2[Subscribe[rows]]"


def batch(began: float, rows: int, seconds: float, unread: float = 0.0, source: str = KAFKA) -> Progress:
    return Progress("run", 0, began, seconds, rows, {source: 0}, {source: unread}, unread)


def told(*progress: Progress, seen: int = 0, kept: int = 0) -> Report:
    return Report("run", "q", False, seen, kept, progress)


class TestQuery:
    @pytest.fixture
    def query(self) -> Query:
        return Query("q", Promise(0.0, 0.5), real_time=False, met=90.0)

    def test_the_rate_is_that_at_which_rows_came_whether_they_were_taken_or_not(self, query: Query) -> None:
        query.hear(told(batch(100.0, 10, 0.1, 0), batch(102.0, 20, 0.1, 30)))
        assert query.rate == 25.0
        assert query.waiting == 30.0

    def test_what_its_batches_used_is_told_by_when_they_were(self, query: Query) -> None:
        for now in range(90, 120):
            query.use(float(now), 0.5 if 101 < now <= 105 else 0.0)
        query.hear(told(batch(99.0, 9, 1.0)))
        assert query.done() == Done(0.0, 0.0, 0.0, 0.0)  # the first one tells nothing
        query.hear(told(batch(101.0, 20, 2.0), batch(103.0, 20, 2.0)))
        assert query.done() == Done(10.0, 0.5, 0.5, 1.0)

    def test_the_part_that_it_had_is_of_what_was_read_and_dropped(self, query: Query) -> None:
        query.hear(told(batch(100.0, 10, 0.5)))
        query.hear(told(batch(101.0, 0, 0.1), batch(102.0, 20, 0.5), seen=20, kept=15))
        assert query.accuracy == 0.75

    def test_who_has_to_shed_first_is_waited_for_until_it_is_measured_but_not_for_ever(self, query: Query) -> None:
        dear = Query("dear", Promise(5.0, 0.5), real_time=False)
        assert not query.comes_before(dear)  # it was met long ago, and has nothing to do
        query.met = time.monotonic()
        assert query.comes_before(dear)
        assert not dear.comes_before(query)
        assert not Query("whole", Promise(0.0, 1.0), real_time=False).comes_before(dear)
        now = time.monotonic()
        query.hear(told(batch(now, 9, 1.0), batch(now + 1.0, 9, 1.0)))
        assert query.measured
        assert not query.comes_before(dear)

    def test_batches_from_before_it_was_met_tell_nothing(self, query: Query) -> None:
        query.hear(told(batch(50.0, 20, 2.0), batch(60.0, 20, 2.0)))
        assert query.done() == Done(0.0, 0.0, 0.0, 0.0)

    def test_where_spark_does_not_count_what_is_dropped_it_is_what_was_told(self, query: Query) -> None:
        query.keep = 0.25
        for number in range(5):
            query.hear(told(batch(100.0 + number, 10, 0.5)))
        assert (query.accuracy, query.kept) == (None, 0.25)

    def test_who_is_in_one_batch_after_the_other_has_let_rows_wait(self, query: Query) -> None:
        query.hear(told(batch(100.0, 1000, 10.0), batch(110.0, 1000, 10.0)))
        assert query.rate == 100.0
        assert query.waiting == 1000.0 - 100.0 * CYCLE

    def test_who_waits_for_the_clock_has_not(self, query: Query) -> None:
        query.hear(told(batch(100.0, 1000, 2.0), batch(110.0, 1000, 2.0)))
        assert query.waiting == 0.0

    def test_nothing_is_dropped_where_its_last_batch_does_not_say_what_waits(self, query: Query) -> None:
        assert query.sheds
        query.hear(told(batch(100.0, 10, 0.1, source="FileStreamSource[/in]")))
        assert (query.sheds, query.keeps_all) == (False, "its source reports no lag")
        query.hear(told(batch(101.0, 0, 0.1)))
        assert not query.sheds  # one without rows says nothing
        query.hear(told(batch(102.0, 10, 0.1)))
        assert query.sheds

    def test_nothing_is_dropped_of_one_that_ends_when_it_has_read_what_was_there(self, query: Query) -> None:
        query.ends = True
        query.hear(told(batch(100.0, 10, 0.1)))
        assert not query.sheds

    @pytest.mark.parametrize("began", [math.nan, 95.0], ids=["unknown", "before the one before it"])
    def test_a_batch_without_a_time_that_can_be_right_counts_with_its_rows_only(
        self, query: Query, began: float
    ) -> None:
        query.hear(told(batch(100.0, 10, 1.0), batch(102.0, 10, 1.0)))
        before = query.done(), query.rate
        query.hear(told(batch(began, 10, 1.0)))
        assert ((query.done(), query.rate), query.rows) == (before, 30)
