"""A sink that fails for good stops the pipeline, ends alone, or is tried again for ever, as its owner says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import treadle
from support import LONG, named, until
from support import treadle as command
from treadle.durations import Backoff
from treadle.errors import ConfigError, EngineError
from treadle.pipelines.hops import hop as hops
from treadle.pipelines.nodes.definition import OnFailure
from treadle.pipelines.run import control_thread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from treadle.pipelines.run.run import Run

pytestmark = pytest.mark.usefixtures("own_sockets")
LIMIT = 100


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed hops start again soon."""
    monkeypatch.setattr(hops, "BACKOFF", Backoff(0.01, 0.1))
    monkeypatch.setattr(control_thread, "SLOW_TICK", 0.05)


class Flow:
    """A feed, an operator `shared` of a good sink and a bad one, and an operator `own` that only the bad one needs."""

    def __init__(self, on_failure: OnFailure | None = None, bad: str = "bad") -> None:
        self.p = treadle.Pipeline(named("failing"))
        self.came: dict[str, list[int]] = {"good": [], "bad": [], "beside": []}
        self.works = False
        self.count = 0
        self.p.feed("fed", schema="a bigint")
        self._operator("shared", "fed", bad)
        self._operator("own", "shared", bad)
        for name, inputs in (("good", "shared"), ("bad", "own"), ("beside", "fed")):
            self._sink(name, inputs, on_failure if name in ("good", "bad") else None, bad)

    def _operator(self, name: str, inputs: str, bad: str) -> None:
        def op(rows: DataFrame) -> DataFrame:
            def check(frames: Iterator[object]) -> Iterator[object]:
                for _ in frames:
                    raise LookupError("no such account")
                yield from ()

            return rows.mapInPandas(check, "a bigint") if name == bad else rows

        self.p.operator(name=name, inputs=inputs)(op)

    def _sink(self, name: str, inputs: str, on_failure: OnFailure | None, bad: str) -> None:
        def out(rows: DataFrame) -> None:
            if name == bad and not self.works:
                raise ConnectionError("the database is away")
            self.came[name] += [row.a for row in rows.collect()]

        self.p.sink(name=name, inputs=inputs, on_failure=on_failure)(out)

    def fill(self, run: Run, rows: int) -> None:
        with_feed = run.feed("fed")
        for first in range(self.count, self.count + rows, 20):
            with_feed.append([{"a": a} for a in range(first, first + 20)], timeout=LONG)
        with_feed.close()
        self.count += rows

    def has(self, *sinks: str) -> bool:
        return all(sorted(self.came[name]) == list(range(self.count)) for name in sinks)


def test_by_default_the_pipeline_stops(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow()
    with flow.p.start(spark, folder=tmp_path, retries=0) as run:
        flow.fill(run, 20)
        with pytest.raises(EngineError, match="the database is away"):
            run.wait(LONG)
        assert run.failed == {}


def test_a_sink_ends_alone_with_what_only_it_needs_and_goes_on_when_its_code_is_mended(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow("continue")
    with flow.p.start(spark, folder=tmp_path, retries=1, limit_rows=LIMIT) as run:
        flow.fill(run, 20)
        until(lambda: run.failed, run)
        assert run.failed == {"bad": "ConnectionError: the database is away"}
        until(lambda: run.status()["hops"]["own"]["state"] == "stopped", run)
        assert run.status()["failed"] == run.failed
        assert run.status()["hops"]["bad"]["state"] == "failed"
        flow.fill(run, 20)
        until(lambda: flow.has("good", "beside"), run)
        assert run.hops["own"].backlogs()[0].rows == 20  # kept for when it is started again
        until(run.drained, run)
        flow.fill(run, 5 * LIMIT)  # the others are not held back by what nobody works off
        until(lambda: flow.has("good", "beside"), run)
        until(lambda: not run.hops["own"].backlogs()[0].rows, run)
        flow.works = True
        flow.p._nodes["bad"] = Flow("continue").p._nodes["bad"]  # the same code, of another object
        run.remove("bad")
        run.add("bad")
        assert run.failed == {}
        flow.fill(run, 20)
        run.stop(drain=True, timeout=LONG)
    assert flow.has("good", "beside")


def test_a_sink_is_tried_again_for_ever(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow()
    with flow.p.start(spark, folder=tmp_path, retries=1, on_failure="retry", limit_rows=10 * LIMIT) as run:
        flow.fill(run, 40)
        until(lambda: run.hops["bad"].failures > 4, run)
        until(lambda: flow.has("good", "beside"), run)
        assert run.status()["hops"]["bad"]["error"] == "ConnectionError: the database is away"
        flow.works = True
        until(lambda: flow.has("bad"), run)
        assert run.failed == {}


def test_a_sink_that_is_tried_again_holds_nobody_back_for_ever(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow("retry", bad="good")
    with flow.p.start(spark, folder=tmp_path, retries=1, limit_rows=LIMIT) as run:
        flow.fill(run, 10 * LIMIT)
        until(lambda: flow.has("bad", "beside"), run)
        flow.works = True
        until(lambda: flow.came["good"] and flow.came["good"][-1] == flow.count - 1, run)
        good = flow.came["good"]
        assert good == sorted(set(good))  # rows are missing, and none is doubled


def test_the_sinks_of_an_operator_that_fails_for_good_end(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow("continue", bad="shared")
    with flow.p.start(spark, folder=tmp_path, retries=0) as run:
        flow.fill(run, 20)
        until(lambda: len(run.failed) == 2, run)
        assert run.failed["good"] == "it needs 'shared': LookupError: no such account"
        until(lambda: flow.has("beside"), run)
        until(lambda: run.status()["hops"]["bad"]["state"] == "stopped", run)


def test_the_run_ends_with_the_error_when_no_sink_is_left(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(bad="shared")
    p = flow.p.restricted(["good"])
    from treadle.pipelines.run.start import start

    with start(p, spark, folder=tmp_path, retries=0, on_failure="continue") as run:
        flow.fill(run, 20)
        with pytest.raises(EngineError, match="no such account"):
            run.wait(LONG)


def test_what_can_not_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_failure can't be 'ignore'"):
        Flow().p.start(on_failure="ignore")


PIPELINE = """
import treadle

p = treadle.Pipeline("apart")
p.feed("fed", schema="a bigint")

@p.source
def ticks(spark):
    return spark.readStream.format("rate").option("rowsPerSecond", 50).load()

@p.sink
def good(ticks):
    ticks.write.format("noop").mode("append").save()

@p.sink
def bad(ticks):
    raise ValueError("no good")

@p.sink
def idle(fed):
    pass
"""


def test_the_command_ends_with_exit_code_1_and_names_the_sink(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("apart.py").write_text(PIPELINE)
    words = ("--retries", "0", "--on-failure", "continue", "--for", "2s", "--json")
    assert command(monkeypatch, "run", "apart.py", *words) == 1
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if line.startswith("error:")] == [
        "error: sink 'bad': ValueError: no good"
    ]
    status = json.loads(said.out)
    assert status["failed"] == {"bad": "ValueError: no good"}
    assert status["hops"]["good"]["rows_in"] > 0
