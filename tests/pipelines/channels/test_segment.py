"""A segment's name says all that a scheduler needs, and its rows are exactly what the channel's schema declares."""

from __future__ import annotations

import datetime as dt
import json
import math
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc

from treadle.errors import ConfigError, EngineError
from treadle.pipelines.channels.segment import (
    BATCH_ROWS,
    Rows,
    Segment,
    arrival,
    arrow_schema,
    conform,
    load,
    parse,
    spark_json,
    store,
    visible,
)

UTC = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("at", UTC)])
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
ROW = {"id": 1, "name": "a", "at": NOON}

counts = st.integers(0, 10**15)
micros = st.integers(0, 2**52)


@given(counts, counts, micros, micros, counts)
def test_a_name_and_its_segment_are_one_and_the_same(first: int, rows: int, oldest: int, mean: int, epoch: int) -> None:
    segment = Segment(first, rows, oldest / 1e6, mean / 1e6, epoch)
    assert segment.name == f"{first:020d}-{rows}-{oldest}-{mean}-{epoch}.arrow"
    assert parse(segment.name) == segment


@given(st.from_regex(r"[0-9]{20}-[0-9]{1,18}-[0-9]{1,19}-[0-9]{1,19}-[0-9]{1,19}\.arrow", fullmatch=True))
def test_a_file_is_found_again_under_its_own_name_however_odd_its_times(name: str) -> None:
    segment = parse(name, 7)
    assert segment is None or (segment.name == name and segment.bytes == 7)


@given(st.text() | st.text(alphabet="0123456789-.arow", max_size=60).map(lambda text: text + ".arrow"))
def test_foreign_names_are_never_an_error(name: str) -> None:
    segment = parse(name)
    assert segment is None or segment.name == name


@pytest.mark.parametrize(
    "name", ["schema.json", ".tmp-1", "0-1-2-3-4.arrow", "٣" * 20 + "-1-2-3-4.arrow", "", "writer.lock"]
)
def test_other_files_of_the_folder_are_not_segments(name: str) -> None:
    assert parse(name) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12))
def test_visible_is_the_run_without_a_gap_from_the_first_on(spans: list[tuple[int, int]]) -> None:
    ordered = [Segment(first, rows, 0, 0, 0) for first, rows in sorted(spans)]
    run, hidden = visible(ordered)
    assert run + hidden == ordered
    assert all(after.first == before.end for before, after in pairwise(run))
    assert bool(run) == bool(ordered)
    assert not hidden or hidden[0].first != run[-1].end


def test_batches_in_a_file_are_small_however_the_rows_came(tmp_path: Path) -> None:
    rows = 2 * BATCH_ROWS + 5
    table = pa.concat_tables([pa.table({"id": range(i, i + 5)}) for i in range(0, rows, 5)])
    size = store(tmp_path / "x", table)
    assert size == (tmp_path / "x").stat().st_size
    with ipc.open_file(tmp_path / "x") as reader:
        assert [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)] == [BATCH_ROWS, BATCH_ROWS, 5]
        assert reader.read_all().column("id").to_pylist() == list(range(rows))


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    table = conform([ROW, ROW | {"id": 2, "name": None}], SCHEMA, "")
    segment = Segment(0, 2, 1.0, 1.0, 0)
    store(tmp_path / segment.name, table)
    assert load(tmp_path, segment, SCHEMA, full=True) == table


@pytest.mark.parametrize("keep", [0, 3, 8, 100, -1, -20])
def test_a_torn_file_is_named_with_its_rows_and_left_there(tmp_path: Path, keep: int) -> None:
    segment = Segment(40, 2, 1.0, 1.0, 0)
    path = tmp_path / segment.name
    store(path, conform([ROW, ROW], SCHEMA, ""))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(EngineError, match="rows 40 to 42 is damaged") as caught:
        load(tmp_path, segment, SCHEMA)
    assert caught.value.where == str(path)
    assert "row 42" in caught.value.remedy
    assert path.exists()


def test_a_file_of_other_bytes_or_other_rows_than_its_name_says_is_damaged(tmp_path: Path) -> None:
    for segment, table in (
        (Segment(0, 3, 1.0, 1.0, 0), conform([ROW], SCHEMA, "")),
        (Segment(3, 1, 1.0, 1.0, 1), pa.table({"id": ["one"], "name": ["a"], "at": [NOON]})),
    ):
        store(tmp_path / segment.name, table)
        with pytest.raises(EngineError, match="damaged"):
            load(tmp_path, segment, SCHEMA)
    segment = Segment(4, 1, 1.0, 1.0, 2)
    (tmp_path / segment.name).write_bytes(b"NOTARROW" * 100)
    with pytest.raises(EngineError, match="damaged"):
        load(tmp_path, segment, SCHEMA)
    with pytest.raises(EngineError, match="no longer there"):
        load(tmp_path, Segment(9, 1, 1.0, 1.0, 3), SCHEMA)


FRAME = pd.DataFrame([ROW])


@pytest.mark.parametrize(
    "rows",
    [
        [ROW],
        [dict(reversed(ROW.items()))],
        FRAME,
        FRAME[["at", "name", "id"]],
        pa.Table.from_pylist([ROW], schema=SCHEMA),
        pa.RecordBatch.from_pylist([ROW], schema=SCHEMA),
        pa.Table.from_pylist([ROW], schema=SCHEMA).select(["name", "at", "id"]),
    ],
)
def test_rows_may_come_in_any_usual_form(rows: Rows) -> None:
    table = conform(rows, SCHEMA, "")
    assert table.schema == SCHEMA
    assert table.to_pylist() == [ROW]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"id": 1, "name": "a"}], "column 'at' is missing"),
        ([ROW, {"id": 1, "at": NOON}], "column 'name' is missing"),
        ([ROW | {"more": 1}], "column 'more' is not in"),
        ([ROW | {"id": "one"}], "column 'id' does not fit int64"),
        ([ROW | {"id": 1.5}], "column 'id' has a float"),
        ([ROW | {"id": 2**70}], "column 'id' does not fit int64"),
        ([ROW | {"id": None}], "column 'id' has nulls"),
        (FRAME.assign(id=1.5), "column 'id' does not fit int64"),
        (FRAME.assign(id=None), "column 'id' has nulls"),
        (FRAME.drop(columns="name"), "column 'name' is missing"),
        (pa.table({"id": pa.array([1], pa.int32()), "name": ["a"], "at": [NOON]}), "column 'id' is int32, not int64"),
        (pa.Table.from_pylist([ROW], schema=SCHEMA).append_column("x", [[1]]), "column 'x' is not in"),
    ],
)
def test_what_does_not_fit_the_schema_is_an_error_that_names_the_column(rows: Rows, complaint: str) -> None:
    with pytest.raises(EngineError, match=complaint) as caught:
        conform(rows, SCHEMA, "here")
    assert caught.value.where == "here"


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'id' is given more than once"):
        conform(pa.table([[1], [2], ["a"]], names=["id", "id", "name"]), SCHEMA, "")
    with pytest.raises(ConfigError, match="'id' is given more than once"):
        arrow_schema(pa.schema([("id", pa.int64()), ("id", pa.int64())]))


def test_arrival_comes_from_a_column_or_as_given_or_is_now() -> None:
    hour = dt.timedelta(hours=1)
    table = conform([ROW, ROW | {"at": NOON + hour}, ROW | {"at": None}], SCHEMA, "")
    noon = NOON.timestamp()
    assert arrival(table, "at", 5.0) == (noon, noon + 1800)
    assert arrival(table, (1.0, 2.0), 5.0) == (1.0, 2.0)
    assert arrival(table, None, 5.0) == (5.0, 5.0)
    assert arrival(table.slice(2), "at", 5.0) == (5.0, 5.0)
    assert arrival(table, (-1.0, -1.0), 5.0) == (0.0, 0.0)


def test_the_mean_of_many_late_times_does_not_overflow() -> None:
    late = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
    table = conform([ROW | {"at": late}] * 1000 + [ROW] * 1000, SCHEMA, "")
    oldest, mean = arrival(table, "at", 5.0)
    assert oldest == NOON.timestamp()
    assert mean == pytest.approx((late.timestamp() + NOON.timestamp()) / 2)


@pytest.mark.parametrize("born", ["name", "nowhere", (math.nan, 1.0), (1.0, math.inf)])
def test_arrival_from_no_time_at_all_is_refused(born: str | tuple[float, float]) -> None:
    with pytest.raises(ConfigError):
        arrival(conform([ROW], SCHEMA, ""), born, 5.0)


def test_a_schema_goes_to_spark_and_back() -> None:
    nested = pa.schema([*SCHEMA, ("tags", pa.list_(pa.field("element", pa.string()))), ("day", pa.date32())])
    text = spark_json(nested)
    assert [column["type"] for column in json.loads(text)["fields"]][:3] == ["long", "string", "timestamp"]
    assert arrow_schema(text) == arrow_schema(nested) == nested


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (pa.schema([("a", pa.large_string())]), "column 'a' is large_string"),
        (pa.schema([("a", pa.timestamp("ns", tz="UTC"))]), "column 'a' is timestamp"),
        (pa.schema([("a", pa.dictionary(pa.int32(), pa.string()))]), "column 'a' is dictionary"),
        (pa.schema([("a", pa.uint64())]), "not a schema"),
        ("{", "not a schema"),
        ('{"type": "struct"}', "not a schema"),
    ],
)
def test_a_schema_that_spark_does_not_have_is_refused(schema: pa.Schema | str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        arrow_schema(schema)
