"""The rate of a source of the user's own: what came, which is not always what was read."""

from __future__ import annotations

import math
from typing import Any

import pytest

from treadle.engines.spark.queries.progress import Progress
from treadle.pipelines.quality.own_sources import OwnSource


def report(batch: int, end: Any, latest: Any, rows: int = 100, source: str = "KafkaV2[Subscribe[t]]") -> Progress:
    ends, latests = {source: end}, {source: latest}
    return Progress("run", batch, 0.0, 1.0, rows, ends, latests, unread=0.0)


def topic(offset: int) -> dict[str, dict[str, int]]:
    return {"t": {"0": offset}}


def test_where_each_batch_reads_all_there_is_what_is_read_is_what_came() -> None:
    source = OwnSource()
    for batch in range(6):
        source.update(2.0 * batch, 100.0 * batch, report(batch, batch, batch, source="RateStreamV2[rowsPerSecond=50]"))
    assert source.lag_known
    assert source.rate == pytest.approx(50.0)
    assert source.waiting(3.0) == pytest.approx(150.0)


def test_a_source_that_is_read_more_slowly_than_rows_come_is_known_by_its_offsets() -> None:
    source = OwnSource()
    for batch in range(6):
        source.update(float(batch), 10.0 * batch, report(batch, topic(100 * batch), topic(300 * batch)))
    assert source.rate == pytest.approx(30.0)  # a tenth of the topic's rows are left by the user's own filter
    assert source.waiting(0.0) == pytest.approx(100.0)


def test_while_a_backlog_is_worked_off_the_rate_is_not_that_of_reading() -> None:
    source = OwnSource()
    for batch in range(6):
        source.update(float(batch), 400.0 * batch, report(batch, topic(400 * batch), topic(10_000 + 50 * batch)))
    assert source.rate == pytest.approx(50.0)


def test_a_source_that_does_not_report_how_far_it_could_be_read_has_no_rate() -> None:
    source = OwnSource()
    for batch in range(6):
        source.update(float(batch), 100.0 * batch, report(batch, {"logOffset": batch}, None, source="FileStreamSource"))
    assert source.lag_known is False
    assert math.isnan(source.rate)
    assert source.waiting(5.0) == 0.0


def test_the_rate_of_a_source_that_falls_silent_falls_too() -> None:
    source = OwnSource()
    for batch in range(6):
        source.update(float(batch), 100.0 * batch, report(batch, topic(100 * batch), topic(100 * batch)))
    source.update(105.0, 500.0, report(5, topic(500), topic(500)))
    assert source.rate < 5.0


def test_channels_of_treadle_in_the_same_query_do_not_make_the_lag_unknown() -> None:
    source = OwnSource()
    for batch in range(3):
        ends = {"KafkaV2[Subscribe[t]]": topic(batch), "treadle.ChannelStream@1f": batch}
        latest = {"KafkaV2[Subscribe[t]]": topic(batch), "treadle.ChannelStream@1f": None}
        source.update(float(batch), float(batch), Progress("run", batch, 0.0, 1.0, 1, ends, latest, unread=0.0))
    assert source.lag_known
