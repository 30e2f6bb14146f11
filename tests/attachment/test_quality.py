"""Promises of running queries: what is read from Spark's progress, and that rows are dropped of whom they may."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from applications import SparkProcess, feeding
from support import named, until
from treadle import attach
from treadle.attachment.quality import CYCLE, Done, Query
from treadle.broker import Broker
from treadle.decide.quality import Promise
from treadle.engines.spark.progress import Progress
from treadle.engines.spark.shedder import Report
from treadle.errors import ConfigError

PROMISES = {
    "dear": {"priority": 1, "min_accuracy": 0.02},
    "cheap": {"priority": 5, "min_accuracy": 0.1},
}
RATE = 400
"""Rows a second, each of which costs the dear query some milliseconds: more than there is anywhere."""


def batch(began: float, rows: int, seconds: float, unread: float = 0.0) -> Progress:
    return Progress("run", 0, began, seconds, rows, {}, {}, unread)


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
        query.met = time.time()
        assert query.comes_before(dear)
        assert not dear.comes_before(query)
        assert not Query("whole", Promise(0.0, 1.0), real_time=False).comes_before(dear)
        now = time.time()
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


def test_without_agents_nothing_can_be_promised() -> None:
    with pytest.raises(ConfigError, match="by an agent only"):
        attach("nobody", qod=PROMISES, agent=False)


def test_rows_are_dropped_of_whom_they_may_and_kept_again_afterwards(
    tmp_path: Path, broker: Broker, own_journals: Path
) -> None:
    topic = named("rows")
    with feeding(broker, topic, RATE), SparkProcess(tmp_path, broker, topic) as application:
        for name in ("dear", "cheap", "other"):
            application.start(name, "dear" if name == "dear" else "micro", 0)
        with attach(application.pid, qod=PROMISES) as attachment:

            def found(name: str) -> dict[str, Any]:
                queries = attachment.status()["quality"]["queries"]
                return next((each for each in queries if each["query"] == name), {"promised": 1.0, "accuracy": None})

            until(lambda: found("dear")["promised"] < 0.9 and (found("dear")["accuracy"] or 1.0) < 0.95)
            assert found("dear")["promised"] >= 0.02
            assert found("cheap")["promised"] == found("other")["promised"] == 1.0
            assert found("other")["min_accuracy"] == 1.0  # nobody has said that it may do with less
            assert found("dear")["rate"] == pytest.approx(RATE, rel=0.5)
        assert attachment.status()["quality"]["queries"]  # also when it is over
