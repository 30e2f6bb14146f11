"""Rows that leave a query are those that its last operator gave to the sink, however often the sink used them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import treadle
from support import until
from treadle.pipelines.spark.output_rows import OutputRows, RowCounts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Plan = Callable[[DataFrame], DataFrame]
    Use = Callable[[DataFrame], None]

ROWS = 40


def once(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


def twice(rows: DataFrame) -> None:
    rows.count()
    once(rows)


def unless_empty(rows: DataFrame) -> None:
    if not rows.isEmpty():
        once(rows)


@pytest.fixture(scope="module")
def numbers(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbers") / "rows"
    spark.range(ROWS).coalesce(1).write.parquet(str(path))
    return path


@pytest.mark.parametrize(
    ("plan", "use", "expected"),
    [
        (lambda rows: rows, once, ROWS),
        (lambda rows: rows.where("id % 4 = 0").selectExpr("id * 2 as id"), once, ROWS // 4),
        (lambda rows: rows.where("id % 4 = 0"), twice, ROWS // 4),
        (lambda rows: rows.where("id % 4 = 0").repartition(2), unless_empty, ROWS // 4),
        (lambda rows: rows.where("id % 4 = 9"), once, 0),
        (lambda rows: rows.selectExpr("explode(sequence(1, 3)) as id"), once, 3 * ROWS),
        (lambda rows: rows.union(rows.where("id < 10")), once, ROWS + 10),
        (lambda rows: rows.groupBy("id").count().where("id < 5"), once, 5),
        (lambda rows: rows, lambda rows: None, math.nan),
    ],
    ids=["all", "filter", "used twice", "looked at first", "none", "more", "union", "groups", "not used"],
)
def test_what_leaves_a_plan_is_counted(
    spark: SparkSession, numbers: Path, tmp_path: Path, plan: Plan, use: Use, expected: float
) -> None:
    rows = plan(spark.readStream.schema("id bigint").parquet(str(numbers)))
    writer = rows.writeStream.foreachBatch(lambda batch, _: use(batch)).outputMode("update")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    counts = OutputRows(spark)
    assert counts.latest(query._jsq, ROWS) == pytest.approx(expected, nan_ok=True)
    assert counts.latest(query._jsq, ROWS) == 0, "a batch counts once"


def test_without_its_class_nothing_is_known() -> None:
    assert math.isnan(OutputRows().latest(object(), ROWS))


def test_a_batch_that_is_not_counted_makes_rows_out_unknown_until_the_next_one() -> None:
    counts = RowCounts()
    counts.count(10, 4)
    counts.count(10, math.nan)
    assert (counts.tuples_in, math.isnan(counts.rows_out)) == (20, True)
    counts.count(10, 6)
    assert (counts.tuples_in, counts.rows_out) == (30, 10)


def test_what_comes_out_without_rows_counts_with_the_next_that_come_in() -> None:
    counts = RowCounts()
    counts.count(0, 7)
    assert counts.flow == (0.0, 0.0)
    counts.count(10, 1)
    assert counts.flow == pytest.approx((10.0, 8.0))


def test_rows_out_of_a_fused_sink_are_those_that_leave_its_last_operator(spark: SparkSession, tmp_path: Path) -> None:
    p = treadle.Pipeline("output-rows")
    p.feed("numbers", schema="id bigint")
    p.operator(name="few", inputs=("numbers",))(lambda rows: rows.where("id % 10 = 0"))
    p.operator(name="many", inputs=("numbers",))(lambda rows: rows.selectExpr("explode(array(id, id)) as id"))
    p.write("some", reads="few", format="noop")
    p.sink(name="all", inputs=("many",))(twice)
    with p.start(spark, folder=tmp_path, layout="fused", policy="highest-rate") as run:
        feed = run.feed("numbers")
        for start in range(0, 300, 100):
            feed.append([{"id": start + each} for each in range(100)])
            until(run.drained)
        hops = run.status()["hops"]
        assert {name: (hop["rows_in"], hop["rows_out"]) for name, hop in hops.items()} == {
            "some": (300, 30),
            "all": (300, 600),
        }
