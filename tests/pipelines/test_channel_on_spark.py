"""Embedded channels as Spark's source and sink: what Java writes Python reads and the other way round, row by row."""

from __future__ import annotations

import datetime as dt
import decimal
import shutil
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, until
from treadle.errors import EngineError
from treadle.pipelines.channels import log
from treadle.pipelines.channels.view import View
from treadle.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL_TYPES = (
    "b boolean, y tinyint, s smallint, i int, l bigint, f float, d double, m decimal(20,6), t timestamp, "
    "z timestamp_ntz, day date, text string, raw binary, gap interval day to second, xs array<int>, "
    "kv map<string,bigint>, st struct<a:int,b:array<string>,c:struct<t:timestamp>>"
)
MOMENT = dt.datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=dt.UTC)
FULL = {
    "b": True,
    "y": -128,
    "s": 32767,
    "i": -(2**31),
    "l": 2**63 - 1,
    "f": 0.5,
    "d": -1e300,
    "m": decimal.Decimal("-12345678901234.567890"),
    "t": MOMENT,
    "z": MOMENT.replace(tzinfo=None),
    "day": dt.date(1969, 12, 31),
    "text": "žluťoučký 🐎",
    "raw": b"\0\xff",
    "gap": dt.timedelta(days=3, microseconds=7),
    "xs": [1, None, 3],
    "kv": [("a", 1), ("b", None)],
    "st": {"a": 1, "b": ["x", None], "c": {"t": MOMENT}},
}
EMPTY: dict[str, Any] = dict.fromkeys(FULL)
HOLLOW = {**EMPTY, "text": "", "raw": b"", "xs": [], "kv": [], "st": {"a": None, "b": [], "c": None}}


@pytest.fixture(autouse=True)
def _classes(spark: SparkSession) -> None:
    jvm.load(spark)


def reader(spark: SparkSession, folder: Path, **options: str | int) -> DataFrame:
    return spark.readStream.format(jvm.CHANNEL).options(path=str(folder), **options).load()


def put(rows: DataFrame, folder: Path, epoch: int, **options: str | int) -> None:
    """A batch, as in foreachBatch."""
    made = rows.write.format(jvm.CHANNEL).options(path=str(folder), epoch=epoch, **options)
    made.mode("append").save()


def batches(rows: DataFrame, checkpoint: Path) -> list[list[Any]]:
    """The batches that a query makes of what is there, each a list of rows."""
    came: list[list[Any]] = []
    query = (
        rows.writeStream.option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda batch, _: came.append(batch.collect()))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return came


def copy(spark: SparkSession, source: Path, target: Path, checkpoint: Path) -> None:
    rows = reader(spark, source)
    query = rows.writeStream.format(jvm.CHANNEL).options(path=str(target), checkpointLocation=str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def test_every_type_and_every_null_survives_the_way_through_java(spark: SparkSession, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with log.Writer(source, ALL_TYPES) as writer:
        writer.append([FULL, EMPTY, HOLLOW, FULL])
        writer.append([HOLLOW] * 3)
    with log.Writer(target, ALL_TYPES):
        pass
    copy(spark, source, target, tmp_path / "checkpoint")
    assert log.read(target).to_pylist() == [FULL, EMPTY, HOLLOW, FULL, HOLLOW, HOLLOW, HOLLOW]
    assert log.read(target).schema.equals(log.read(source).schema)
    assert log.verify(target) == []


def test_a_hop_reads_exactly_the_rows_it_was_granted_across_segments(spark: SparkSession, tmp_path: Path) -> None:
    with log.Writer(tmp_path / "numbers", "a bigint") as writer:
        for first in range(0, 50, 10):
            writer.append([{"a": a} for a in range(first, first + 10)])
    rows = reader(spark, tmp_path / "numbers", maxRowsPerTrigger=13, consumer="me")
    (tmp_path / "numbers" / "positions").mkdir()
    came = batches(rows, tmp_path / "checkpoint")
    assert [[row.a for row in batch] for batch in came] == [
        list(range(first, min(50, first + 13))) for first in range(0, 50, 13)
    ]
    assert log.positions(tmp_path / "numbers") == {"me": 50}


def test_many_rows_are_read_by_several_tasks_and_none_is_cut(spark: SparkSession, tmp_path: Path) -> None:
    rows = 600_001
    with log.Writer(tmp_path / "many", "id bigint"):
        pass
    put(spark.range(0, rows, 1, 3), tmp_path / "many", 0)
    seen: list[tuple[int, int, int]] = []

    def look(batch: DataFrame, _: int) -> None:
        tasks = batch.selectExpr("id", "spark_partition_id() AS task").groupBy("task").agg({"id": "sum", "*": "count"})
        found = tasks.collect()
        seen.append((sum(row["count(1)"] for row in found), sum(row["sum(id)"] for row in found), len(found)))

    query = reader(spark, tmp_path / "many").writeStream.foreachBatch(look)
    running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    running.processAllAvailable()
    running.stop()
    assert seen == [(rows, rows * (rows - 1) // 2, 2)]


def test_the_parts_of_an_epoch_become_visible_at_once(spark: SparkSession, tmp_path: Path) -> None:
    folder, ends, done = tmp_path / "parts", set(), threading.Event()
    with log.Writer(folder, "id bigint"):
        pass

    def look() -> None:
        while not done.is_set():
            ends.add(View(folder).end)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for epoch in range(8):
            put(spark.range(epoch * 40, epoch * 40 + 40, 1, 4), folder, epoch)
    finally:
        done.set()
        watcher.join()
    assert {end % 40 for end in ends} == {0}
    assert len(ends) > 1
    assert sorted(row["id"] for row in log.read(folder).to_pylist()) == list(range(320))
    assert len(View(folder).segments) == 1 + 8 * 4  # an empty one marks the beginning


def test_an_epoch_that_two_processes_have_published_hides_nothing_that_follows(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "twice"
    with log.Writer(folder, "id bigint"):
        pass
    put(spark.range(0, 10, 1, 1), folder, 0, oldest=5_000_000, mean=6_000_000)
    (segment,) = View(folder).segments
    shutil.copy(folder / segment.name, folder / segment.name.replace("-5000000-", "-5500000-"))  # it was slow to die
    for epoch in (1, 2):
        put(spark.range(10 * epoch, 10 * epoch + 10, 1, 1), folder, epoch)
    assert [row["id"] for row in log.read(folder).to_pylist()] == list(range(30))


def test_a_hop_whose_turn_is_closed_is_given_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Not everything at once, as one that was never gated."""
    with log.Writer(tmp_path / "numbers", "a bigint") as writer:
        writer.append([{"a": a} for a in range(10)])
    (tmp_path / "numbers" / "positions").mkdir()
    key, parked, came = f"closed-{uuid.uuid4().hex}", list[str](), list[int]()
    turn = jvm.load(spark).treadle.Turn
    turn.open(key, jvm.Listener(lambda hop, _: parked.append(hop), lambda *_: None))
    query = (
        reader(spark, tmp_path / "numbers", hop=key, consumer="me")
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda batch, _: came.extend(row.a for row in batch.collect()))
        .start()
    )
    try:
        until(lambda: parked == [key])
        turn.close(key)
        query.processAllAvailable()
        query.processAllAvailable()
    finally:
        query.stop()
    assert came == []


def test_an_epoch_that_comes_again_is_ignored(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    with log.Writer(folder, "id bigint"):
        pass
    put(spark.range(0, 10, 1, 2), folder, 3, oldest=5_000_000, mean=6_000_000)
    put(spark.range(100, 110, 1, 2), folder, 3)
    put(spark.range(100, 110, 1, 2), folder, 1)
    put(spark.range(10, 15, 1, 1), folder, 4)
    assert [row["id"] for row in log.read(folder).to_pylist()] == list(range(15))
    view = View(folder)
    assert view.epoch == 4
    assert (view.backlog(0).oldest, view.segments[1].mean) == (5.0, 6.0)
    assert not list(folder.glob(".tmp-*"))


def test_a_batch_without_its_number_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with log.Writer(tmp_path / "x", "id bigint"):
        pass
    with pytest.raises(Exception, match="needs the option epoch"):
        spark.range(3).write.format(jvm.CHANNEL).option("path", str(tmp_path / "x")).mode("append").save()


def test_python_goes_on_where_java_ended_and_java_where_python_did(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    with log.Writer(folder, "id bigint") as writer:
        writer.append([{"id": 0}])
    put(spark.range(1, 3, 1, 1), folder, 1)
    with log.Writer(folder, "id bigint") as writer:
        writer.append([{"id": 3}])
    put(spark.range(4, 6, 1, 2), folder, 9)
    with log.Writer(folder, "id bigint") as writer:
        writer.append([{"id": 6}], epoch=9)  # that one is there
        writer.append([{"id": 6}])
        assert writer.epoch == 10
    assert [row["id"] for row in log.read(folder).to_pylist()] == list(range(7))
    assert log.verify(folder) == []


def test_what_spark_did_not_finish_is_cleared_away(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "torn"
    with log.Writer(folder, "id bigint") as writer:
        writer.append([{"id": 0}])
    put(spark.range(1, 3, 1, 2), folder, 1)
    last = sorted(folder.glob("*.arrow"))[-1]
    last.rename(folder / last.name.replace(f"{2:020d}", f"{5:020d}"))  # as if the part before it had not come
    (folder / ".tmp-2-0-x").write_bytes(b"torn")
    put(spark.range(10, 13, 1, 1), folder, 2)  # parts of another epoch must not meet the ones behind the gap
    assert [row["id"] for row in log.read(folder).to_pylist()] == [0, 1, 10, 11, 12]
    with log.Writer(folder, "id bigint"):
        assert sorted(path.name for path in folder.glob(".tmp-*")) == []


def numbers(name: str, came: list[int]) -> treadle.Pipeline:
    p = treadle.Pipeline(name)
    p.feed("fed", schema="a bigint")

    @p.sink
    def out(fed: DataFrame) -> None:
        came.extend(row.a for row in fed.collect())

    return p


@pytest.mark.parametrize("damage", ["cut", "emptied", "another's"])
def test_a_damaged_segment_is_named_with_its_rows_and_put_back_nothing_is_lost(
    spark: SparkSession, tmp_path: Path, damage: str
) -> None:
    came: list[int] = []
    p = numbers(f"damage-{uuid.uuid4().hex[:8]}", came)
    with p.start(spark, folder=tmp_path, retries=0) as run:
        feed = run.feed("fed")
        feed.append([{"a": a} for a in range(10)])
        run.stop(drain=True, timeout=LONG)
    folder = tmp_path / "channels" / "fed"
    with log.Writer(folder, "a bigint") as writer:
        first, second = (writer.append([{"a": a} for a in range(low, low + 10)]) for low in (10, 20))
    assert first is not None
    assert second is not None
    whole = (folder / second.name).read_bytes()
    with log.Writer(tmp_path / "other", "a bigint") as writer:
        other = writer.append([{"a": 1}])
    assert other is not None
    torn = {
        "cut": whole[: len(whole) // 2],
        "emptied": b"",
        "another's": (tmp_path / "other" / other.name).read_bytes(),
    }
    (folder / second.name).write_bytes(torn[damage])
    with p.start(spark, folder=tmp_path, retries=0) as run, pytest.raises(EngineError) as caught:
        run.wait(LONG)
    assert second.name in str(caught.value)
    assert "rows 20 to 30" in str(caught.value)
    assert "put the file back" in str(caught.value)
    (folder / second.name).write_bytes(whole)
    with p.start(spark, folder=tmp_path, retries=0) as run:
        run.stop(drain=True, timeout=LONG)
    assert sorted(came) == list(range(30))
