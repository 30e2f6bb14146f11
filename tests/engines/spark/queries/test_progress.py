"""What waits is the difference of two offsets, but only of those that count rows."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import FUZZ, JSON, objects
from treadle.engines.spark.queries.progress import Progress, difference
from treadle.errors import EngineError, TreadleError

KAFKA = "KafkaV2[Subscribe[payments]]"


def report(description: str, end: Any, latest: Any) -> str:
    source = {"description": description, "startOffset": None, "endOffset": end, "latestOffset": latest}
    return json.dumps(
        {
            "runId": "r",
            "batchId": 3,
            "timestamp": "2025-01-01T00:00:01.500Z",
            "numInputRows": 7,
            "batchDuration": 250,
            "sources": [source],
        }
    )


def test_kafkas_offsets_tell_the_rows_that_wait() -> None:
    progress = Progress.parse(report(KAFKA, {"payments": {"0": 10, "1": 5}}, {"payments": {"0": 25, "1": 5}}))
    assert (progress.batch, progress.rows, progress.began, progress.seconds) == (3, 7, 1735689601.5, 0.25)
    assert progress.waiting == progress.unread == 15
    assert progress.behind({KAFKA: {"payments": {"0": 30, "1": 6}}}) == 21


def test_a_partition_that_was_added_began_at_zero() -> None:
    assert difference({"t": {"0": 5, "1": 8}}, {"t": {"0": 5}}) == 8
    assert difference({"t": {"0": 5}, "u": {"0": 2}}, {"t": {"0": 4}}) == 3


@pytest.mark.parametrize(
    ("description", "end", "latest"),
    [
        ("RateStreamV2[rowsPerSecond=10]", 4, 9),
        ("FileStreamSource[file:/data]", {"logOffset": 1}, {"logOffset": 4}),
        (KAFKA, {"t": {"0": 1}}, None),
        (KAFKA, None, {"t": {"0": 1}}),
        ("DeltaSource", {"reservoirVersion": 3, "reservoirId": "x"}, {"reservoirVersion": 4, "reservoirId": "x"}),
        ("Iceberg", {"position": 3, "all": False}, {"position": 4, "all": False}),
        ("Odd", "no json", "no json"),
        ("Odd", {}, {}),
    ],
)
def test_what_does_not_count_rows_is_unknown(description: str, end: Any, latest: Any) -> None:
    progress = Progress.parse(report(description, end, latest))
    assert math.isnan(progress.waiting)
    assert progress.unread == 0


def test_one_source_that_does_not_tell_makes_the_whole_unknown() -> None:
    known, other = (
        json.loads(report(KAFKA, {"t": {"0": 1}}, {"t": {"0": 2}})),
        json.loads(report("RateStreamV2", 1, 1)),
    )
    known["sources"] += other["sources"]
    progress = Progress.parse(json.dumps(known))
    assert math.isnan(progress.waiting)
    assert progress.unread == 1, "what is known of the other is told apart"


def test_a_topic_that_is_read_twice_has_rows_for_both() -> None:
    twice = json.loads(report(KAFKA, {"t": {"0": 1}}, {"t": {"0": 3}}))
    twice["sources"] *= 2
    progress = Progress.parse(json.dumps(twice))
    assert progress.unread == 4
    assert progress.waiting == progress.behind(progress.latest) == 2, "by name, as all that is compared with it"


def test_what_was_not_counted_is_nothing() -> None:
    assert Progress.parse(json.dumps({**json.loads(report(KAFKA, None, None)), "numInputRows": -1})).rows == 0


offsets = st.dictionaries(
    st.text(min_size=1),
    st.dictionaries(st.integers(0, 9).map(str), st.integers(0, 2**53), min_size=1),
    min_size=1,
)


@given(offsets, st.integers(0, 1000))
def test_each_row_that_comes_counts_once(offset: dict[str, dict[str, int]], more: int) -> None:
    later = {topic: {part: end + more for part, end in parts.items()} for topic, parts in offset.items()}
    assert difference(offset, offset) == 0
    assert difference(later, offset) == more * sum(map(len, offset.values()))


@pytest.mark.parametrize(
    "odd",
    [
        {"numInputRows": math.nan},
        {"numInputRows": "many"},
        {"numInputRows": None},
        {"numInputRows": True},
        {"batchDuration": math.inf},
        {"batchDuration": []},
        {"timestamp": "yesterday"},
        {"timestamp": 5},
        {"sources": None},
        {"sources": [{}]},
        {"sources": [{"description": {}}]},
        {"sources": [{"description": 1, "endOffset": 1, "latestOffset": 2}]},
    ],
    ids=str,
)
def test_a_report_that_can_not_be_right_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="progress report"):
        Progress.parse(json.dumps({**json.loads(report(KAFKA, None, None)), **odd}))


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '"text"', "[" * 100_000])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(EngineError, match="progress report"):
        Progress.parse(text)


REPORTS = st.fixed_dictionaries(
    {
        "runId": JSON,
        "batchId": st.one_of(st.just(1), JSON),
        "timestamp": st.one_of(st.just("2025-01-01T00:00:01.500Z"), st.just("9999-12-31T23:59:59+00:00"), JSON),
        "numInputRows": st.one_of(st.just(1), JSON),
        "sources": st.one_of(JSON, st.lists(objects("description", "endOffset", "latestOffset"), max_size=3)),
    },
    optional={"batchDuration": JSON},
)


@FUZZ
@given(st.one_of(st.text(), JSON.map(json.dumps), REPORTS.map(json.dumps)))
def test_any_report_is_survived(text: str) -> None:
    with suppress(TreadleError):
        progress = Progress.parse(text)
        assert math.isnan(progress.waiting) or progress.waiting >= 0.0


def test_offsets_that_are_nested_without_end_tell_nothing() -> None:
    offset: dict[str, Any] = {"a": 1}
    for _ in range(300):
        offset = {"a": offset}
    assert math.isnan(Progress.parse(report(KAFKA, offset, offset)).waiting)
    with pytest.raises(EngineError):
        Progress.parse('{"a":' * 100_000)
