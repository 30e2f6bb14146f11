"""A pipeline with promises sheds what it can do without, those of low priority first, and says so."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import treadle
from pipelines.topics import numbers, produce
from support import LONG, named, until
from treadle import jars
from treadle.broker import Broker
from treadle.decide.quality import Decision, Measured, equations
from treadle.errors import ConfigError
from treadle.estimates import WEIGHT
from treadle.pipelines.channels import encoded
from treadle.workloads.burn import burn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from treadle.pipelines.run.run import Run

ROWS = 200


def heavy(minimum: tuple[float, float], hashes: int, accuracy: Any = None) -> treadle.Pipeline:
    """Two sinks that do the same for each row, `high` before `low`, whose accuracy may be its own."""
    p = treadle.Pipeline(named("promise"))
    p.feed("rows", schema="id long")
    for name, priority, least, own in (("low", 1, minimum[0], accuracy), ("high", 5, minimum[1], None)):

        def sink(rows: DataFrame) -> None:
            rows.selectExpr(burn("cast(id as string)", hashes)).write.format("noop").mode("append").save()

        p.sink(name=name, inputs="rows", priority=priority, min_accuracy=least, accuracy=own)(sink)
    return p


@contextmanager
def flooded(run: Run) -> Iterator[None]:
    """Rows come in all the time, many more than can be worked on."""
    feed, over = run.feed("rows"), threading.Event()

    def fill() -> None:
        number = 0
        while not over.wait(0.05):
            feed.append([{"id": number + each} for each in range(ROWS)])
            number += ROWS

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def sinks(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.status()["quality"]["sinks"]
    return found


def promised(run: Run, sink: str) -> float:
    """What it is to have at present."""
    found = sinks(run)[sink]["promised"]
    return 1.0 if found is None else float(found)


@pytest.mark.parametrize("layout", ["hops", *(["fused"] if os.environ.get("TREADLE_SOAK") else [])])
def test_under_overload_the_lower_priority_sheds_first_and_all_is_as_before_afterwards(
    spark: SparkSession, tmp_path: Path, layout: str
) -> None:
    p = heavy((0.0, 0.0), 1000)
    with p.start(spark, folder=tmp_path, layout=layout, slots=1, cycle="500ms", limit_rows=10**9) as run:
        with flooded(run):
            until(lambda: promised(run, "low") < 0.2, run)
            until(lambda: sinks(run)["low"]["accuracy"] < 0.3, run)
            assert promised(run, "high") >= promised(run, "low")
            streams = run.status()["quality"]["streams"]
            assert set(streams) == {"rows>low", "rows>high"}
            for wrong in ({"lwo": 0.5}, {"rows": 0.5}, {"low": 2}, "off", 0.5, None):
                with pytest.raises(ConfigError):
                    run.set(quality=wrong)
            assert run.settings.read()["quality"] == {"low": 0.0, "high": 0.0}
            run.set(quality=False)
            assert {stream["keep"] for stream in run.status()["quality"]["streams"].values()} == {1.0}
            cycle = run.status()["quality"]["time"]
            until(lambda: run.status()["quality"]["time"] not in (None, cycle), run)
            assert promised(run, "low") == promised(run, "high") == 1.0
            run.set(quality={"low": 0.95}, priorities={"low": 9})  # and `high` has its own minimum, 0, still
            assert [sinks(run)[name]["min_accuracy"] for name in ("low", "high")] == [0.95, 0.0]
            until(lambda: promised(run, "high") < 0.2, run)
            assert promised(run, "low") > promised(run, "high")
            run.set(quality={}, priorities={})
            until(lambda: promised(run, "low") < 0.2, run)
        until(lambda: promised(run, "low") == promised(run, "high") == 1.0, run)


def test_a_sink_that_stalls_shows_within_two_cycles_though_nothing_is_dropped(
    spark: SparkSession, tmp_path: Path
) -> None:
    p = treadle.Pipeline(named("stall"))
    p.feed("rows", schema="id long")
    goes_on = threading.Event()
    goes_on.set()

    @p.sink(min_accuracy=0.5)
    def out(rows: DataFrame) -> None:
        goes_on.wait(LONG)
        rows.write.format("noop").mode("append").save()

    with p.start(spark, folder=tmp_path, cycle="1s", limit_rows=10**9) as run, flooded(run):
        try:
            until(lambda: run.hops["out"].batches > 5 and sinks(run)["out"]["accuracy"] == 1.0, run)
            goes_on.clear()
            until(lambda: run.gate.stats.holding, run)
            cycles = {run.status()["quality"]["time"]}

            def shows() -> bool:
                quality = run.status()["quality"]
                cycles.add(quality["time"])
                return bool(quality["sinks"]["out"]["accuracy"] < 0.5)

            until(shows, run)
            assert len(cycles) <= 1 + 2
            assert sinks(run)["out"]["kept"] == 1.0
        finally:
            goes_on.set()
        until(lambda: sinks(run)["out"]["accuracy"] == 1.0, run)


@pytest.mark.parametrize("own", [True, *([False] if os.environ.get("TREADLE_SOAK") else [])])
def test_a_minimum_that_can_not_be_had_is_named_as_its_owner_measures_it(
    spark: SparkSession, tmp_path: Path, *, own: bool
) -> None:
    accuracy = treadle.relative_error(window="50ms") if own else None
    p = heavy((0.9, 0.9), 2000, accuracy)
    with p.start(spark, folder=tmp_path, slots=1, cycle="500ms", limit_rows=10**9) as run, flooded(run):
        text = f"sink 'low' is promised 90% {'accuracy' if own else 'of its input'} and gets "
        until(lambda: any(each.startswith(text) for each in run.status()["quality"]["short"]), run)
        status = run.status()["quality"]
        assert "cores are missing" in status["short"][0]
        assert status["sinks"]["low"]["promised"] < 0.9


def test_while_decisions_fail_nothing_is_dropped_and_that_is_logged_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = heavy((0.0, 0.0), 1)
    with p.start(spark, folder=tmp_path, cycle="200ms") as run:
        keeper = run.promises
        assert keeper is not None
        controller = keeper.controller
        fails = threading.Event()
        decide = controller.cycle

        def cycle(measured: Measured) -> Decision:
            if fails.is_set():
                raise ValueError("no decision")
            decision: Decision = decide(measured)
            return replace(decision, streams=np.full_like(decision.streams, 0.5))

        def kept() -> list[float]:
            return [keeper._shedding.get(stream) for stream in keeper._streams]

        monkeypatch.setattr(controller, "cycle", cycle)
        until(lambda: kept() == [0.5, 0.5], run)
        fails.set()
        until(lambda: kept() == [1.0, 1.0], run)
        assert not keeper.sheds
        fails.clear()
        until(lambda: kept() == [0.5, 0.5], run)
    said = [record for record in caplog.records if "all rows are kept until it works again" in record.getMessage()]
    assert len(said) == 1


def test_rows_carry_their_weight_only_where_something_may_be_shed(spark: SparkSession, tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}
    for name, minimum in (("with", 0.5), ("without", None)):
        p = treadle.Pipeline(named("weight"))
        p.feed("rows", schema="id long")

        @p.sink(name="out", inputs="rows", min_accuracy=minimum)
        def out(rows: DataFrame, name: str = name) -> None:
            seen[name] = rows.columns

        with p.start(spark, folder=tmp_path / name) as run:
            run.feed("rows").append([{"id": 1}])
            until(lambda name=name: name in seen, run)  # type: ignore[misc]
            assert ("quality" in run.status()) is (name == "with")
    assert seen == {"with": ["id", WEIGHT], "without": ["id"]}


def test_where_shedding_is_turned_off_all_rows_come_and_weigh_one(spark: SparkSession, tmp_path: Path) -> None:
    p = treadle.Pipeline(named("whole"))
    p.feed("rows", schema="id long")
    found: list[float] = []

    @p.sink(min_accuracy=0.0)
    def out(rows: DataFrame) -> None:
        found.append(rows.agg(treadle.corrected().alias("all")).collect()[0]["all"]["value"])

    with p.start(spark, folder=tmp_path, shed=False, cycle="500ms") as run:
        run.feed("rows").append([{"id": number} for number in range(ROWS)])
        until(lambda: sum(found) == ROWS, run)
        assert sinks(run)["out"]["promised"] is None


def decide(run: Run, wanted: dict[str, float]) -> None:
    """Let each sink have such a part from the next cycle on, whatever is measured."""
    assert run.promises is not None
    controller, flow = run.promises.controller, run.promises.flow
    measured = controller.cycle

    def cycle(seen: Measured) -> Decision:
        desired = flow.upstream(np.array([wanted[flow.tasks[sink]] for sink in flow.sinks.tolist()]))
        streams, outside = equations.keep(flow, desired)
        return replace(measured(seen), desired=desired, streams=streams, outside=outside)

    controller.cycle = cycle  # type: ignore[method-assign]


@pytest.mark.parametrize(("layout", "wanted"), [("hops", {"a": 0.3, "b": 0.5}), ("fused", {"a": 0.3})])
def test_a_source_of_ones_own_is_shed_as_decided_and_its_rate_is_known(
    spark: SparkSession, tmp_path: Path, layout: str, wanted: dict[str, float]
) -> None:
    p = treadle.Pipeline(named("own"))

    @p.source
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").option("rowsPerSecond", 2000).load().where("value % 2 = 0")

    for name in wanted:
        p.write(name, reads="rows", format="noop", min_accuracy=0.0)
    with p.start(spark, folder=tmp_path, layout=layout, cycle="500ms") as run:
        decide(run, wanted)
        until(lambda: run.status()["quality"]["rates"].get("rows", 0.0) > 500.0, run)
        assert run.status()["quality"]["rates"]["rows"] < 2000.0
        for name, part in wanted.items():
            until(lambda name=name, part=part: sinks(run)[name]["accuracy"] == pytest.approx(part, abs=0.05), run)  # type: ignore[misc]


def test_of_a_source_that_does_not_report_its_lag_nothing_is_dropped_and_that_is_said(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    p = treadle.Pipeline(named("files"))

    @p.source
    def rows(spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        return files.json(str(tmp_path / "in"))

    @p.sink(min_accuracy=0.0)
    def out(rows: DataFrame) -> None:
        rows.selectExpr(burn("cast(id as string)", 2000)).write.format("noop").mode("append").save()

    number = 0
    with p.start(spark, folder=tmp_path / "work", slots=1, cycle="500ms") as run:

        def fill() -> bool:
            nonlocal number
            text = "".join(f'{{"id": {row}}}\n' for row in range(1000))
            (tmp_path / f"{number}.json").write_text(text)
            (tmp_path / f"{number}.json").rename(tmp_path / "in" / f"{number}.json")
            number += 1
            return bool(run.hops["out"].batches >= 6)

        until(fill, run)
        assert promised(run, "out") == 1.0
        assert sinks(run)["out"]["kept"] == 1.0
    assert [record.message for record in caplog.records if "no rows of source 'rows' are dropped" in record.message]


def test_an_accuracy_about_a_sum_sheds_as_far_as_the_sum_stays_known(spark: SparkSession, tmp_path: Path) -> None:
    p = treadle.Pipeline(named("sums"))
    p.feed("rows", schema="id long")

    @p.operator
    def priced(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("*", "1 + 2 * (id % 2) AS amount")  # 1 and 3: the spread is 5 / 4

    @p.sink(min_accuracy=0.9, accuracy=treadle.relative_error("amount", window="10s"))
    def revenue(priced: DataFrame) -> None:
        burnt = priced.selectExpr(burn("cast(id as string)", 1000))
        burnt.write.format("noop").mode("append").save()

    with p.start(spark, folder=tmp_path, layout="fused", slots=1, cycle="500ms", limit_rows=10**9) as run:
        with flooded(run):
            until(lambda: (sinks(run)["revenue"]["kept"] or 1.0) < 0.5, run)
            assert run.promises is not None
            assert run.promises._spreads["revenue"].value == pytest.approx(1.25, rel=0.05)
            assert sinks(run)["revenue"]["promised"] >= 0.9
        until(lambda: promised(run, "revenue") == 1.0, run)


def test_an_accuracy_about_a_column_that_is_not_there_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    p = treadle.Pipeline(named("sums"))
    p.feed("rows", schema="id long")
    p.write("out", reads="rows", format="noop", min_accuracy=0.9, accuracy=treadle.relative_error("amount"))
    with pytest.raises(ConfigError, match=r"'amount', which its input does not have.*use one of id"):
        p.start(spark, folder=tmp_path)


@pytest.mark.parametrize(
    ("measure", "minimum", "why"),
    [
        ("amount", 0.9, "accuracy is 'amount'"),
        (treadle.relative_error(), None, "an accuracy without a min_accuracy"),
        (lambda kept: 1.0 - kept.part, 0.9, "never less for a larger part"),
        (lambda kept: 2.0 * kept.part, 0.9, "return 0 to 1"),
        (lambda kept: kept.fraction, 0.9, "AttributeError"),
    ],
)
def test_an_accuracy_must_be_one(measure: Any, minimum: float | None, why: str) -> None:
    p = treadle.Pipeline(named("wrong"))
    p.feed("rows", schema="id long")
    with pytest.raises(ConfigError, match=why):
        p.write("out", reads="rows", format="noop", min_accuracy=minimum, accuracy=measure)


def test_what_may_go_first_must_be_said_as_such() -> None:
    p = treadle.Pipeline(named("wrong"))
    with pytest.raises(ConfigError, match="by_utility"):
        p.feed("rows", schema="id long", shed="id")  # type: ignore[arg-type]


def test_rows_of_endless_use_all_come_through_under_overload(spark: SparkSession, tmp_path: Path) -> None:
    p = treadle.Pipeline(named("fraud"))
    p.feed(
        "rows", schema="id long", shed=treadle.by_utility("CASE WHEN id % 100 = 0 THEN double('infinity') ELSE 1.0 END")
    )
    came: set[int] = set()
    counted = {"all": 0}

    @p.sink(min_accuracy=0.0)
    def out(rows: DataFrame) -> None:
        found = rows.selectExpr("id", f"{burn('cast(id as string)', 2000)} AS h").collect()
        counted["all"] += len(found)
        came.update(row.id for row in found if row.id % 100 == 0)

    with p.start(spark, folder=tmp_path, slots=1, cycle="500ms", limit_rows=10**9) as run:
        with flooded(run):
            until(lambda: promised(run, "out") < 0.5, run)
        run.drain(120)
        total = run.channels["rows"].total
    assert came == set(range(0, total, 100))
    assert counted["all"] < total


def test_a_source_of_ones_own_is_shed_as_decided_in_real_time(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    jars.fetch("spark-kafka")
    encoded.load(spark)
    topic, over = named("own"), threading.Event()
    produce(broker.bootstrap, topic, *numbers(10))
    p = treadle.Pipeline(named("own"))

    @p.source
    def rows(spark: SparkSession) -> DataFrame:
        kafka = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
        return kafka.option("subscribe", topic).load()

    p.write("out", reads="rows", format="noop", min_accuracy=0.0)

    def fill() -> None:
        while not over.wait(0.1):
            produce(broker.bootstrap, topic, *numbers(100))

    thread = threading.Thread(target=fill)
    with p.start(spark, folder=tmp_path, layout="realtime", batch="1s", cycle="500ms") as run:
        decide(run, {"out": 0.3})
        thread.start()
        try:
            until(lambda: run.status()["quality"]["rates"].get("rows", 0.0) > 0.0, run)
            until(lambda: sinks(run)["out"]["accuracy"] == pytest.approx(0.3, abs=0.05), run)
            assert sinks(run)["out"]["cpu"] > 0.0
        finally:
            over.set()
            thread.join()
