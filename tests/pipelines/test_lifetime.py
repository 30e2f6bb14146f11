"""The first and the last moments of a run: it can be asked while it starts, and what runs when it stops is done."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, named, until
from treadle.control import control_socket
from treadle.errors import EngineError
from treadle.linux.files.file_lock import holder
from treadle.pipelines.hops.hop import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    until(lambda: not [query for query in spark.streams.active if (query.name or "").startswith(p.name)])


def test_a_stop_takes_no_longer_than_was_said_and_names_who_did_not_stop(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    p, begun, go = treadle.Pipeline(named("blocks")), threading.Event(), threading.Event()
    p.feed("fed", schema="a bigint")
    p.write("idle", reads="fed", format="noop")

    @p.sink
    def blocks(fed: DataFrame) -> None:
        begun.set()
        assert go.wait(2 * LONG)  # which Spark can't interrupt

    with p.start(spark, folder=tmp_path) as run:
        run.feed("fed").append([{"a": 1}])
        assert begun.wait(LONG)
        stopping = threading.Thread(target=run.stop, kwargs={"timeout": 4}, daemon=True)
        stopping.start()
        stopping.join(LONG)
        assert not stopping.is_alive()
        assert "hop 'blocks' did not stop in time" in caplog.text
        assert run.hops["idle"].state is State.STOPPED
        with pytest.raises(EngineError, match="already runs a pipeline there"):
            p.start(spark, folder=tmp_path)  # the batch still writes there
        go.set()
        until(lambda: holder(tmp_path) is None)
    assert not [query for query in spark.streams.active if (query.name or "").startswith(p.name)]


def test_a_run_that_starts_answers_already(spark: SparkSession, tmp_path: Path) -> None:
    p, said = treadle.Pipeline(named("early")), list[dict[str, Any]]()
    p.feed("fed", schema="a bigint")

    @p.operator
    def asks(fed: DataFrame) -> DataFrame:
        said.append(control_socket.ask(control_socket.path_for(p.name), "status"))
        with pytest.raises(EngineError, match="still starting"):
            control_socket.ask(control_socket.path_for(p.name), "policy", name="fcfs")
        return fed

    p.write("out", reads="asks", format="noop")
    with p.start(spark, folder=tmp_path) as run:
        assert control_socket.ask(control_socket.path_for(p.name), "policy", name="fcfs") == "fcfs"
        assert set(run.status()["hops"]) == {"asks", "out"}
    assert said[0]["policy"] == "multi-class"


def test_an_ended_run_keeps_no_file_of_the_kernel_open(spark: SparkSession, tmp_path: Path) -> None:
    p = treadle.Pipeline(named("files"))
    p.feed("fed", schema="a bigint")
    p.write("out", reads="fed", format="noop")
    before = kernel_files()
    with p.start(spark, folder=tmp_path, slots="auto"):
        assert len(kernel_files()) > len(before)
    assert kernel_files() == before


def kernel_files() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return sorted(name for name in found if name in ("/proc/stat", "/proc/pressure/cpu"))
