"""Rows are dropped in Spark: as many as was said, at once when that changes, and those that may go."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from select import select
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from support import LONG, until
from treadle import jars
from treadle.enforce import Enforcer
from treadle.enforce.shed import Choice, Count, ShedKnob
from treadle.errors import ConfigError
from treadle.estimates import WEIGHT, corrected
from treadle.pipelines.quality.shedding import Shedding
from treadle.pipelines.spark import jvm

ROWS = 20_000


@pytest.fixture
def shedding(spark: SparkSession) -> Iterator[Shedding]:
    made = Shedding(spark, seed=7)
    yield made
    made.forget("test/")


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 2).selectExpr("id", "id % 500 AS key", "1.0 + id % 10 AS use")


@pytest.mark.parametrize("choice", [Choice(), Choice(utility="use"), Choice(key=("key",))])
@pytest.mark.parametrize("keep", [1.0, 0.5, 0.1, 0.0])
def test_as_much_is_kept_as_was_said(shedding: Shedding, rows: DataFrame, choice: Choice, keep: float) -> None:
    shedding.set("test/a", keep)
    kept = shedding.shed(rows, "test/a", choice).count()
    assert kept == pytest.approx(keep * ROWS, abs=0.06 * ROWS if choice.key else 0.02 * ROWS)
    assert shedding.counts()["test/a"] == (ROWS, kept)


def test_weights_correct_counts_and_sums_also_after_two_drops(shedding: Shedding, rows: DataFrame) -> None:
    shedding.set("test/a", 0.5)
    shedding.set("test/b", 0.4)
    twice = shedding.shed(shedding.shed(rows, "test/a"), "test/b", Choice(utility="use"))
    [found] = twice.agg(corrected().alias("count"), corrected("use").alias("sum")).collect()
    truth = rows.agg(f.sum("use")).collect()[0][0]
    for estimate, true in ((found["count"], ROWS), (found["sum"], float(truth))):
        reach = 2 * (estimate["high"] - estimate["value"])  # so that one seed in ten thousand is out of it
        assert abs(estimate["value"] - true) <= reach
        assert 0 < reach < 0.2 * true


def test_rows_of_endless_use_are_never_dropped(shedding: Shedding, rows: DataFrame) -> None:
    shedding.set("test/a", 0.2)
    use = "CASE WHEN id % 50 = 0 THEN double('infinity') WHEN id % 50 = 1 THEN NULL ELSE 1.0 END"
    kept = shedding.shed(rows, "test/a", Choice(utility=use))
    fates = {row["rest"]: row["count"] for row in kept.groupBy((f.col("id") % 50).alias("rest")).count().collect()}
    assert fates[0] == fates[1] == ROWS // 50
    assert sum(fates.values()) == pytest.approx(0.2 * ROWS, abs=0.02 * ROWS)


def test_of_a_key_all_rows_are_kept_or_none_and_more_keeps_the_same_and_others(
    shedding: Shedding, rows: DataFrame
) -> None:
    keys: list[set[int]] = []
    for keep in (0.3, 0.6):
        shedding.set("test/a", keep)
        found = shedding.shed(rows, "test/a", Choice(key=("key",))).groupBy("key").count().collect()
        assert {row["count"] for row in found} == {ROWS // 500}
        keys.append({row["key"] for row in found})
    assert keys[0] < keys[1]


def test_a_running_query_hears_of_a_change(shedding: Shedding, spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    query = (
        shedding.shed(stream, "test/live")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "check"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        until(lambda: shedding.counts().get("test/live", Count(0, 0)).kept > 500)
        shedding.set("test/live", 0.0)
        before = shedding.counts()["test/live"]
        until(lambda: shedding.counts()["test/live"].seen > before.seen + 2000)
        passed = shedding.counts()["test/live"].since(before)
        assert passed.part < 0.2
    finally:
        query.stop()
        shutil.rmtree(tmp_path)


@pytest.mark.parametrize("choice", [Choice(), Choice(utility="1.0 + value % 10"), Choice(key=("value % 50",))])
def test_all_actions_of_a_batch_see_the_same_rows_which_count_once(
    shedding: Shedding, spark: SparkSession, tmp_path: Path, choice: Choice
) -> None:
    """Also those that read its partitions in another way, and those after which more or less is to be kept."""
    shedding = Shedding(spark)  # without a seed
    stream = spark.readStream.format("rate").option("rowsPerSecond", 1000).option("numPartitions", 3).load()
    batches: list[list[list[int]]] = []

    def sink(rows: DataFrame, _: int) -> None:
        first = sorted(row.value for row in rows.collect())
        shedding.set("test/twice", 0.3 if shedding.get("test/twice") == 0.6 else 0.6)
        again = sorted(row.value for row in rows.coalesce(1).collect())
        fewer = sorted(row.value for row in rows.where("value % 2 = 0").repartition(2).collect())
        batches.append([first, again, fewer])

    shedding.set("test/twice", 0.6)
    came = stream.observe("came", f.count(f.lit(1)).alias("rows"))
    query = (
        shedding.shed(came, "test/twice", choice)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "check"))
        .start()
    )
    try:
        until(lambda: sum(len(first) > 100 for first, *_ in batches) >= 3)
    finally:
        query.stop()
    for first, again, fewer in batches:
        assert again == first
        assert fewer == [value for value in first if value % 2 == 0]
    counted = shedding.counts()["test/twice"]
    largest = max(value for first, *_ in batches for value in first)
    assert largest < counted.seen < largest + 3000
    assert counted.kept >= sum(len(first) for first, *_ in batches)
    assert counted.kept < counted.seen


def test_a_task_that_is_tried_again_keeps_the_same_rows_and_they_count_once(
    shedding: Shedding, rows: DataFrame
) -> None:
    shedding.set("test/a", 0.5)
    shed = shedding.shed(rows, "test/a").drop(WEIGHT)
    once = shed.rdd  # one plan, as a batch of a stream is: what it gives is worked out at each action
    assert once.map(lambda row: row.id).collect() == once.map(lambda row: row.id).collect()
    assert shedding.counts()["test/a"].seen == ROWS


def test_the_knob_restores_everything(shedding: Shedding) -> None:
    enforcer = Enforcer(ShedKnob(shedding))
    enforcer.apply(enforcer.diff(("test/a", "test/b"), np.array([0.5, 0.25])))
    assert [shedding.get("test/a"), shedding.get("test/b")] == [0.5, 0.25]
    enforcer.restore()
    assert [shedding.get("test/a"), shedding.get("test/b")] == [1.0, 1.0]
    with pytest.raises(ConfigError, match="0 to 1"):
        ShedKnob(shedding).write("test/a", 1.5)


def test_by_utility_and_by_key_at_once_is_refused() -> None:
    with pytest.raises(ConfigError, match="both a utility and a key"):
        Choice(utility="a", key=("b",))


def test_no_row_goes_through_python(shedding: Shedding, rows: DataFrame) -> None:
    plan = shedding.shed(rows, "test/a")._jdf.queryExecution().executedPlan().toString()
    assert "Python" not in plan
    assert WEIGHT in plan


class Driver:
    """What an executor sees of a driver: a socket that says what is kept."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        java = [jars.java(), "-cp", str(jvm.jar()), str(Path(__file__).with_name("Follower.java"))]
        self._executor = subprocess.Popen(
            [*java, str(self._server.getsockname()[1])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def accept(self) -> socket.socket:
        self._server.settimeout(LONG)
        return self._server.accept()[0]

    def kept(self) -> float:
        """What the executor keeps, when that next changes."""
        assert self._executor.stdout is not None
        assert select([self._executor.stdout], [], [], LONG)[0], "it never came"
        return float(self._executor.stdout.readline())

    def close(self) -> None:
        self._executor.communicate("\n")
        self._server.close()


def test_an_executor_that_loses_its_driver_keeps_everything_until_it_hears_from_it_again() -> None:
    with closing(Driver()) as driver:
        assert driver.kept() == 1.0
        for _ in range(2):
            with driver.accept() as connection:
                connection.sendall(b"stream\t0.25\t0\n")
                assert driver.kept() == 0.25
            assert driver.kept() == 1.0  # the connection has ended
        with driver.accept() as connection:
            connection.sendall(b"stream\t0.25\t0\n")
            assert driver.kept() == 0.25
            assert driver.kept() == 1.0  # the driver is silent
            connection.sendall(b"stream\t0.5\t0\n")
            assert driver.kept() == 0.5
            connection.sendall(b"stream\t0.25\t1\nlost\n")
            assert driver.kept() == 1.0  # the JVM of the driver hears nothing from Python
            connection.sendall(b"\n")
            assert driver.kept() == 0.25


@contextmanager
def executor(spark: SparkSession, name: str = "an executor") -> Iterator[Callable[..., list[str]]]:
    """A connection to the driver: reports these lines, and returns what the driver says until it has read them."""
    java: Any = spark.sparkContext._jvm
    shed = java.treadle.Shed
    port = int(shed.serve("127.0.0.1", "secret"))
    with socket.create_connection(("127.0.0.1", port), LONG) as connection, connection.makefile("rw") as talk:

        def report(*lines: str) -> list[str]:
            talk.write("".join(f"{line}\n" for line in (*lines, "")))
            talk.flush()
            said: list[str] = []
            while not said or said[-1] not in ("\n", "lost\n"):
                said.append(talk.readline())
            return said if said[-1] != "\n" else said[:-1]

        talk.write(f"{shed.secret()}\n{name}\n")
        yield report


def test_an_executor_hears_from_its_driver_also_while_nothing_changes(shedding: Shedding, spark: SparkSession) -> None:
    with executor(spark) as report:
        report()
        shedding.set("test/a", 0.25)
        assert any(line.startswith("test/a\t0.25\t") for line in report())
        assert report() == []  # but for the end of the answer


def test_without_a_sign_from_python_all_rows_are_kept(shedding: Shedding, spark: SparkSession) -> None:
    shedding.set("test/a", 0.25)
    with executor(spark) as report:
        shedding.hold(0.1)
        until(lambda: shedding.get("test/a") == 1.0)
        assert "lost\n" in report()
        shedding.hold(LONG)
        assert shedding.get("test/a") == 0.25
        assert "lost\n" not in report()
        shedding.hold(0.1)
        until(lambda: shedding.get("test/a") == 1.0)
        shedding.release()
        assert shedding.get("test/a") == 0.25


def test_late_and_repeated_reports_of_executors_count_once(shedding: Shedding, spark: SparkSession) -> None:
    """Two executors with a partition each, one of which reports late; then both report again, as after a reconnect."""
    batches = 1200  # more than the driver remembers
    lines = [[f"test/late\t{batch}\t{part}\t10" for batch in range(batches)] for part in range(2)]
    with executor(spark, "first") as first, executor(spark, "second") as second:
        for start in range(0, batches, 50):
            first(*lines[0][start : start + 50])
            second(*lines[1][start : start + 50])
        assert shedding.counts()["test/late"].seen == 20 * batches
        first(*lines[0])
        second(*lines[1])
    assert shedding.counts()["test/late"].seen == 20 * batches
    shedding.forget("test/late")


def test_batches_count_again_after_the_clock_was_set_back(shedding: Shedding, spark: SparkSession) -> None:
    ahead = 1000 * int(time.time() + 3600)
    with executor(spark) as report:
        report(*(f"test/back\t{ahead + batch}\t0\t10" for batch in range(1200)))
        before = shedding.counts()["test/back"]
        report(f"test/back\t{ahead - 3_600_000}\t0\t10")
    assert shedding.counts()["test/back"].since(before).seen == 10


def test_the_probability_of_a_row_is_known_after_any_number_of_rows(spark: SparkSession) -> None:
    java: Any = jvm.load(spark)
    gateway: Any = spark.sparkContext._gateway
    kind = java.java.lang.Thread.currentThread().getContextClassLoader().loadClass("treadle.Utility")
    maker = kind.getDeclaredConstructor(gateway.new_array(java.java.lang.Class, 0))
    types = gateway.new_array(java.java.lang.Class, 2)
    types[0] = types[1] = java.java.lang.Double.TYPE
    probability, count = kind.getDeclaredMethod("probability", types), kind.getDeclaredField("count")
    for each in (maker, probability, count):
        each.setAccessible(True)
    utility = maker.newInstance(gateway.new_array(java.java.lang.Object, 0))
    given = gateway.new_array(java.java.lang.Object, 2)
    given[0], given[1] = 1.0, 0.5
    count.setInt(utility, 2**31 - 3)
    for _ in range(5):
        assert probability.invoke(utility, given) > 0.0
        assert count.getInt(utility) > 0
