"""ETL and STATS on Spark: sinks get the rows of the reference in each layout, and where batches divide messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, named, until
from treadle.workloads.riot import etl, etl_operators, etl_reference, sensors, stats, stats_reference
from treadle.workloads.riot.etl_reference import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

COUNT = 300
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
UNKNOWN = "ci4000000000000000000000000"
Rows = dict[str, list[Row]]


def damaged(lines: list[str]) -> list[str]:
    """The lines, with one that is no record, and one of an unknown sensor."""
    known = next(sensor for sensor in sensors.sensor_ids() if sensor in lines[9])
    return [*lines[:5], "nonsense", *lines[6:9], lines[9].replace(known, UNKNOWN), *lines[10:]]


def results(
    spark: SparkSession,
    folder: Path,
    layout: str,
    add: Callable[..., tuple[str, ...]],
    lines: list[str],
) -> Rows:
    """What each sink gets, in the order of ids and texts, after a run in batches of 160 rows."""
    p, came = treadle.Pipeline(named("riot")), dict[str, list[Any]]()

    def gather(output: str) -> None:
        @p.sink(name=f"{output}_out", inputs=output)
        def gathered(rows: DataFrame) -> None:
            came.setdefault(output, []).extend(rows.selectExpr("id", "unix_micros(created)", "payload").collect())

    for output in add(p, source="feed"):
        gather(output)
    records = [
        {"id": number, "created": CREATED + timedelta(milliseconds=number), "line": line}
        for number, line in enumerate(lines)
    ]
    with p.start(spark, folder=folder, layout=layout, batch="160 rows") as run:
        run.feed("lines").append(records)
        run.stop(drain=True, timeout=LONG)
        run.check()
    begin = CREATED.timestamp()
    for rows in came.values():
        assert all(created == round((begin + number / 1e3) * 1e6) for number, created, _ in rows)
    return {output: sorted((number, payload) for number, _, payload in rows) for output, rows in came.items()}


@pytest.fixture(scope="module")
def etl_lines() -> list[str]:
    return damaged(sensors.etl_lines(COUNT, 1, sensors=12))


@pytest.fixture(scope="module")
def stats_lines() -> list[str]:
    return damaged(sensors.stats_lines(COUNT, 2, sensors=12))


@pytest.mark.parametrize("layout", ["fused", "hops"])
def test_etl_gives_the_rows_of_the_reference(
    spark: SparkSession, tmp_path: Path, layout: str, etl_lines: list[str]
) -> None:
    expected = etl_reference.run(etl_lines)
    assert [len(rows) for rows in expected.values()] == [COUNT - 2, COUNT - 2]
    assert results(spark, tmp_path, layout, etl.add, etl_lines) == expected


@pytest.mark.parametrize("layout", ["fused", "hops"])
def test_stats_gives_the_rows_of_the_reference(
    spark: SparkSession, tmp_path: Path, layout: str, stats_lines: list[str]
) -> None:
    expected = {sink: sorted(rows) for sink, rows in stats_reference.run(stats_lines).items()}
    found = results(spark, tmp_path, layout, stats.add, stats_lines)
    assert len(expected["publish_regression"]) > COUNT
    assert found["publish_moment"] == expected["publish_moment"]
    assert found["publish_count"] == expected["publish_count"]
    assert found.keys() == expected.keys()
    for (record, values), (expected_record, expected_values) in zip(
        predicted(found["publish_regression"]), predicted(expected["publish_regression"]), strict=True
    ):
        assert record == expected_record
        assert values == pytest.approx(expected_values, rel=1e-9, abs=1e-6)


def predicted(rows: list[Row]) -> list[tuple[tuple[int, str], list[float]]]:
    """Of each regression the id and the text up to the type, and the predicted values."""
    split = [(number, re.fullmatch(r"(.*-(?:temp|humid|light|dust|airq)-)(.*)", text)) for number, text in rows]
    return [((number, match[1]), [float(value) for value in match[2].split("#")]) for number, match in split if match]


def test_rows_are_inserted_by_hundreds_on_spark_too(spark: SparkSession) -> None:
    line = "1422748800000,s1,6.16,46.19,8.0,53.7,0.0,411.02,0.0,nbh,radar"
    lines = spark.range(0, 250, 1, 1).selectExpr("id", "timestamp_millis(id) AS created", f"'{line}' AS line")
    rows = sorted(etl_operators.table_insert(lines).collect())
    assert [row.batch_rows for row in rows] == [100] * 200 + [50] * 50
    assert [row.payload for row in rows] == [etl_reference.entity(number, line) for number in range(250)]
    assert [row.created for row in rows] == [row.created for row in lines.collect()]


def parts_of(spark: SparkSession, lines: list[str], folder: Path) -> DataFrame:
    """The parts of messages, a hundred messages per file and batch, as a stream that ends."""
    rows = [{"id": number, "created": CREATED, "line": line} for number, line in enumerate(lines)]
    parts = etl_operators.senml_parse(spark.createDataFrame(rows, "id long, created timestamp, line string"))
    for start in range(0, len(lines), 100):
        hundred = parts.where(f"id BETWEEN {start} AND {start + 99}").coalesce(1)
        hundred.write.mode("append").parquet(f"{folder}/parts")
    return spark.readStream.schema(parts.schema).option("maxFilesPerTrigger", 1).parquet(f"{folder}/parts")


def run_to_its_end(writer: DataStreamWriter, folder: Path) -> StreamingQuery:
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    try:
        until(lambda: not query.isActive)
        assert query.exception() is None
    finally:
        query.stop()
    return query


def test_interpolated_rows_leave_each_batch_in_the_order_of_their_ids(spark: SparkSession, tmp_path: Path) -> None:
    parts, came = parts_of(spark, sensors.etl_lines(100, 4, sensors=5), tmp_path), list[int]()
    written = etl_operators.interpolation(parts).writeStream.foreachBatch(
        lambda rows, _: came.extend(row.id for row in rows.collect())
    )
    run_to_its_end(written, tmp_path)
    assert came == [number for number in range(100) for _ in range(6)]


def test_the_join_forgets_incomplete_messages_when_much_newer_ones_have_come(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etl_operators, "KEPT_MESSAGES", 50)
    incomplete = parts_of(spark, sensors.etl_lines(COUNT, 3), tmp_path).where("obs_type != 'dust'")
    joined = etl_operators.join(incomplete).writeStream.format("noop").outputMode("update")
    query = run_to_its_end(joined, tmp_path)
    kept = [progress["stateOperators"][0]["numRowsTotal"] for progress in query.recentProgress]
    assert 100 <= max(kept) <= 150
    assert kept[-1] <= 51
