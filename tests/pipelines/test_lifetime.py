"""The first and the last moments of a run: it can be asked while it starts, and what runs when it stops is done."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import treadle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONG = 120.0


def named(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def until(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.01)


def test_a_run_that_was_asked_to_end_still_finishes_the_batch_that_runs(spark: SparkSession, tmp_path: Path) -> None:
    p, came = treadle.Pipeline(named("ends")), list[int]()
    begun, go = threading.Event(), threading.Event()
    p.feed("fed", schema="a bigint")
    p.feed("other", schema="a bigint")
    p.write("idle", reads="other", format="noop")

    @p.sink
    def out(fed: DataFrame) -> None:
        begun.set()
        assert go.wait(LONG)
        came.extend(row.a for row in fed.collect())

    with p.start(spark, folder=tmp_path) as run:
        until(lambda: run.hops["idle"].parked)
        run.feed("fed").append([{"a": 1}])
        assert begun.wait(LONG)
        run.end()  # as `treadle ctl stop` does
        stopping = threading.Thread(target=run.stop)
        stopping.start()
        until(lambda: run.hops["idle"].id not in run.gate.ranks)  # nobody is granted any more
        go.set()
        stopping.join(LONG)
        assert not stopping.is_alive()
    assert came == [1]
    assert (tmp_path / "checkpoints" / "out" / "commits" / "0").exists()


def test_a_batch_without_end_is_given_up_although_others_wait_for_its_slot(spark: SparkSession, tmp_path: Path) -> None:
    p, begun = treadle.Pipeline(named("endless")), threading.Event()

    @p.source
    def ticks(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").option("rowsPerSecond", 20).load()

    @p.sink
    def waits(ticks: DataFrame) -> None:
        ticks.count()

    @p.sink
    def endless(ticks: DataFrame) -> None:
        begun.set()
        ticks.sparkSession.range(10**16).selectExpr("sum(id % 7)").collect()

    with p.start(spark, folder=tmp_path, layout="fused", slots=1, express=0) as run:
        until(begun.is_set)
        until(lambda: run.status()["hops"]["waits"]["state"] == "waiting")
        stopping = threading.Thread(target=run.stop, kwargs={"timeout": 0.1}, daemon=True)
        stopping.start()
        stopping.join(LONG)
        assert not stopping.is_alive()
    assert not [query for query in spark.streams.active if (query.name or "").startswith(p.name)]
