"""What waits is the difference of two offsets, but only of those that count rows."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.pipelines.progress import Arrivals, Progress, difference

KAFKA = "KafkaV2[Subscribe[payments]]"


def report(description: str, end: Any, latest: Any) -> str:
    source = {"description": description, "startOffset": None, "endOffset": end, "latestOffset": latest}
    return json.dumps(
        {
            "runId": "r",
            "batchId": 3,
            "timestamp": "2025-01-01T00:00:01.500Z",
            "numInputRows": 7,
            "sources": [source],
        }
    )


def test_kafkas_offsets_tell_the_rows_that_wait() -> None:
    progress = Progress.parse(report(KAFKA, {"payments": {"0": 10, "1": 5}}, {"payments": {"0": 25, "1": 5}}))
    assert (progress.batch, progress.rows, progress.began) == (3, 7, 1735689601.5)
    assert progress.behind(progress.latest) == 15
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
    assert math.isnan(progress.behind(progress.latest))
    assert not progress.counts_rows


def test_one_source_that_does_not_tell_makes_the_whole_unknown() -> None:
    known, other = (
        json.loads(report(KAFKA, {"t": {"0": 1}}, {"t": {"0": 2}})),
        json.loads(report("RateStreamV2", 1, 1)),
    )
    known["sources"] += other["sources"]
    assert not Progress.parse(json.dumps(known)).counts_rows


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


def test_a_row_came_between_the_looks_that_first_saw_it() -> None:
    arrivals = Arrivals()
    assert math.isnan(arrivals.came(0))
    for at, count in ((10.0, 100), (12.0, 100), (14.0, 300), (16.0, math.nan), (13.0, 900)):
        arrivals.note(at, count)
    assert arrivals.latest == 14
    assert arrivals.came(0) == 10  # seen first then, however old
    assert arrivals.came(100) == 12
    assert arrivals.came(200) == 13
    assert arrivals.came(300) == 14


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1), st.integers(2, 9))
def test_later_rows_never_came_earlier(steps: list[tuple[int, int]], keep: int) -> None:
    arrivals, at, count = Arrivals(keep), 0, 0
    for passed, more in steps:
        at, count = at + passed, count + more
        arrivals.note(at, count)
    came = [arrivals.came(row) for row in range(count + 1)]
    assert came == sorted(came)
    assert came[-1] <= at
