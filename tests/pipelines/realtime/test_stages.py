"""The realtime layout on a real broker: rows come at once, an operator is a stage, and what can't be is refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from pipelines.topics import numbers, produce
from support import LONG, named, until
from treadle import jars
from treadle.broker import Broker
from treadle.decide.batch import Rows
from treadle.errors import ConfigError, EngineError, TreadleError
from treadle.linux.files.file_lock import holder
from treadle.pipelines.channels.cluster import client_config
from treadle.pipelines.hops.options import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from treadle.pipelines.run.run import Run

FOREVER = "1h"
"""A batch that does not end during a test."""
AT_ONCE = 0.1


@pytest.fixture(autouse=True)
def _spark_has_kafka(spark: SparkSession) -> None:
    jars.fetch("spark-kafka")


class Out:
    """What has come to a topic so far."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Consumer

        self.topic = named("out")
        produce(bootstrap, self.topic)
        self._consumer = Consumer(client_config(bootstrap) | {"group.id": self.topic, "auto.offset.reset": "earliest"})
        self._consumer.subscribe([self.topic])
        self._rows: list[dict[str, Any]] = []

    def rows(self) -> list[dict[str, Any]]:
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is None:
                self._rows.append(json.loads(message.value() or b""))
        return self._rows

    def values(self, column: str) -> list[int]:
        return sorted(row[column] for row in self.rows())

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def out(broker: Broker) -> Iterator[Out]:
    made = Out(broker.bootstrap)
    yield made
    made.close()


def as_json(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("to_json(struct(*)) AS value")


def chain(topic: str, out: Out) -> treadle.Pipeline:
    """Three operators, of which two filter, in one query; and a query with none. They take 4 task slots."""
    p = treadle.Pipeline(named("chain"))
    p.topic("numbers", topic=topic, schema="a bigint")

    @p.operator
    def doubled(numbers: DataFrame) -> DataFrame:
        return numbers.selectExpr("a", "2 * a AS b")

    @p.operator
    def large(doubled: DataFrame) -> DataFrame:
        return doubled.where("b >= 20").selectExpr("*", "sha2(string(b), 256) AS h")

    @p.operator
    def told(large: DataFrame) -> DataFrame:
        return as_json(large.where("h IS NOT NULL"))

    p.write("sent", reads="told", format="kafka", options={"topic": out.topic})
    p.write("dropped", reads="numbers", format="noop")
    return p


def stages(run: Run, sink: str) -> list[str]:
    """The physical plan of a query that runs, a text for each stage, from the source on."""
    query = run.hops[sink].query
    assert query is not None
    plan = str(query._jsq.streamingQuery().lastExecution().executedPlan().toString())
    return re.split(r"\n.*Exchange.*isPipelined=true.*\n", plan)[::-1]


def test_rows_come_out_before_the_batch_ends_and_each_operator_is_a_stage(
    spark: SparkSession, broker: Broker, out: Out, tmp_path: Path
) -> None:
    topic = named("in")
    produce(broker.bootstrap, topic, *numbers(30))
    before = {key: value for key, value in spark.conf.getAll.items() if "arrow" not in key}  # which any run sets
    p = chain(topic, out)
    run = p.start(spark, layout="realtime", folder=tmp_path, kafka=broker.bootstrap, batch=FOREVER)
    try:
        until(lambda: len(out.rows()) == 20, run)
        produce(broker.bootstrap, topic, *numbers(10, 30))
        until(lambda: len(out.rows()) == 30, run)
        until(lambda: run.status()["running"] == 2, run)
        hop = run.status()["hops"]["sent"]
        assert (hop["state"], hop["batches"], hop["queue"]) == ("running", 0, 40)  # nothing is known within a batch
        found = stages(run, "sent")
        assert [re.findall(r"treadle (\w+) reads", stage) for stage in found] == [["doubled"], ["large"], ["told"]]
        assert "(b#" not in found[0]  # the filters are where they were written, not moved to the stage before
        assert ">= 20" in found[1]
        assert "isnotnull(h#" in found[2]
        tracker = spark.sparkContext.statusTracker()
        [job] = tracker.getJobIdsForGroup(str(run.hops["sent"].query.runId))
        info = tracker.getJobInfo(job)
        assert info is not None
        stage_ids = sorted(info.stageIds)

        def active() -> list[int]:  # Spark's own counts come a little later
            return [found.numActiveTasks if found else 0 for found in map(tracker.getStageInfo, stage_ids)]

        until(lambda: active() == [1, 1, 1], run)
    finally:
        run.stop(timeout=AT_ONCE)
    assert out.values("a") == list(range(10, 40))
    assert {key: value for key, value in spark.conf.getAll.items() if "arrow" not in key} == before


def test_a_stop_after_a_drain_repeats_nothing_and_one_in_the_middle_loses_nothing(
    spark: SparkSession, broker: Broker, out: Out, tmp_path: Path
) -> None:
    topic = named("in")
    p = chain(topic, out)
    options: dict[str, Any] = {"layout": "realtime", "folder": tmp_path, "kafka": broker.bootstrap}
    produce(broker.bootstrap, topic, *numbers(100), "{torn")
    with p.start(spark, **options, batch="1s") as run:
        run.stop(drain=True, timeout=LONG)
        hop = run.status()["hops"]["sent"]
        assert run.status()["hops"]["dropped"]["rows_in"] == 101
    assert (hop["state"], hop["rows_in"], hop["rows_out"], hop["bad_rows"]) == ("stopped", 101, 90, 1)
    assert hop["operators"] == {"doubled": 100, "large": 100, "told": 90}
    assert hop["batches"] > 0
    produce(broker.bootstrap, topic, *numbers(100, 100))
    with p.start(spark, **options, batch=FOREVER) as run:
        until(lambda: len(out.rows()) >= 190, run)
        run.stop(timeout=AT_ONCE)
    assert out.values("a") == list(range(10, 200))  # up to here each once
    produce(broker.bootstrap, topic, *numbers(100, 200))
    with p.start(spark, **options, batch="1s") as run:
        run.stop(drain=True, timeout=LONG)
    until(lambda: set(out.values("a")) == set(range(10, 300)))
    repeated = [a for a, times in Counter(out.values("a")).items() if times > 1]
    assert repeated == list(range(100, 200))  # the batch that was cut off came again
    with pytest.raises(EngineError, match=r"another layout \('realtime'\)"):
        p.start(spark, folder=tmp_path, kafka=broker.bootstrap)


def test_all_inputs_of_a_union_flow_and_state_is_kept_after_it(
    spark: SparkSession, broker: Broker, out: Out, tmp_path: Path
) -> None:
    topic = named("in")
    produce(broker.bootstrap, topic, *numbers(3))
    p = treadle.Pipeline(named("united"))
    p.topic("numbers", topic=topic, schema="a bigint")
    p.topic("again", topic=topic, schema="a bigint")  # one source in two ways, as the error says
    p.feed("fed", schema="a bigint")

    @p.operator
    def doubled(again: DataFrame) -> DataFrame:
        return again.selectExpr("2 * a AS a")

    @p.operator
    def united(numbers: DataFrame, doubled: DataFrame) -> DataFrame:
        return numbers.union(doubled)

    @p.operator
    def counted(united: DataFrame) -> DataFrame:
        return as_json(united.groupBy("a").count())

    @p.operator
    def told(fed: DataFrame) -> DataFrame:
        return as_json(fed.selectExpr("a", "-1L AS count"))

    p.write("counts", reads="counted", format="kafka", options={"topic": out.topic})
    p.write("copies", reads="told", format="kafka", options={"topic": out.topic})
    options: dict[str, Any] = {"channels": "kafka", "kafka": broker.bootstrap, "batch": FOREVER}
    run = p.start(spark, layout="realtime", folder=tmp_path, **options)
    try:
        run.feed("fed").append([{"a": 7}])
        until(lambda: len(out.rows()) == 7, run)
        last = {row["a"]: max(each["count"] for each in out.rows() if each["a"] == row["a"]) for row in out.rows()}
        assert last == {0: 2, 1: 1, 2: 2, 4: 1, 7: -1}
        first, second = (re.findall(r"treadle (\w+) reads (\w+)", stage) for stage in stages(run, "counts"))
        assert second == [("counted", "united")]
        # What comes before a union is in its stage.
        assert set(first) == {("united", "numbers"), ("united", "doubled"), ("doubled", "again")}
        with pytest.raises(ConfigError, match=r"no gate in the realtime layout.*treadle attach --policy edf"):
            run.set_policy("edf")
        with pytest.raises(ConfigError, match=r"no gate in the realtime layout.*treadle attach"):
            run.set_slots(2)
        assert run.policy == "none"
    finally:
        run.stop(timeout=AT_ONCE)


# What it can't do


def written(function: Callable[..., Any] | None = None, *inputs: str, **writer: Any) -> treadle.Pipeline:
    """A pipeline with one operator, that reads topics which are there."""
    p = treadle.Pipeline(named("refused"))
    for name in inputs or ("numbers",):
        p.topic(name, topic="realtime-there", schema="a bigint")
    p.operator(name="wrong", inputs=inputs or "numbers")(function or (lambda numbers: numbers))
    p.write("sent", reads="wrong", **{"format": "noop", **writer})
    return p


def refused(p: treadle.Pipeline, spark: SparkSession | None, broker: Broker, folder: Path, **options: Any) -> str:
    produce(broker.bootstrap, "realtime-there")
    with pytest.raises(TreadleError) as error:
        p.start(spark, layout="realtime", folder=folder, kafka=broker.bootstrap, **options)
    assert holder(folder) is None
    assert not (folder / "pipeline.json").exists()  # it may still become that of another
    assert not [q for q in spark.streams.active if p.name in str(q.name)] if spark is not None else True
    assert "\n" not in str(error.value)
    return str(error.value)


def in_python(numbers: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    return numbers.select(f.udf(lambda a: a, "bigint")("a").alias("a"))


def in_pandas(numbers: DataFrame) -> DataFrame:
    return numbers.mapInPandas(lambda batches: batches, "a bigint")


def in_arrow(numbers: DataFrame) -> DataFrame:
    return numbers.mapInArrow(lambda batches: batches, "a bigint")


def with_state(numbers: DataFrame) -> DataFrame:
    def count(key: Any, rows: Any, state: Any) -> Any:
        yield from rows

    return numbers.groupBy("a").applyInPandasWithState(count, "a bigint", "n bigint", "update", "NoTimeout")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (in_python, "runs Python"),
        (in_pandas, "runs Python"),
        (in_arrow, "runs Python"),
        (with_state, "runs Python"),
        (
            lambda numbers: numbers.groupBy("a").count().groupBy("count").count(),
            "has a stateful operator after another one.*Kafka topic between",
        ),
        (lambda numbers: numbers.union(numbers.where("a > 1")), "reads one source in two ways.*under two names"),
        (lambda numbers: numbers.limit(3), "uses GlobalLimit, which real-time mode does not support"),
        (lambda numbers: numbers.coalesce(1), "uses Coalesce, which real-time mode does not support"),
    ],
)
def test_an_operator_that_real_time_mode_can_not_run_is_named(
    spark: SparkSession, broker: Broker, tmp_path: Path, function: Callable[..., Any], message: str
) -> None:
    error = refused(written(function), spark, broker, tmp_path)
    assert re.search(rf"operator 'wrong' \(test_stages.py:\d+\): {message}", error)
    assert "layout='hops'" in error


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda numbers, others: numbers.join(others, "a"), "joins two streams.*static table"),
        (
            lambda numbers, others: numbers.groupBy("a").count().union(others.selectExpr("a", "a")),
            "has a union after a stateful operator",
        ),
        (lambda numbers, others: numbers.repartition(1).union(others), "has a union after repartition"),
    ],
)
def test_two_streams_that_can_not_be_one_query_are_named(
    spark: SparkSession, broker: Broker, tmp_path: Path, function: Callable[..., Any], message: str
) -> None:
    error = refused(written(function, "numbers", "others"), spark, broker, tmp_path)
    assert re.search(rf"operator 'wrong' .*: {message}", error)


def test_sources_and_sinks_that_do_not_stream_rows_are_refused(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rate = treadle.Pipeline(named("rate"))
    rate.source(lambda spark: spark.readStream.format("rate").load(), name="ticks")  # type: ignore[call-overload]
    rate.write("sent", reads="ticks", format="noop")
    assert re.search("source 'ticks'.*reads 'rate', but .* Kafka only.*p.topic", refused(rate, spark, broker, tmp_path))
    fed = treadle.Pipeline(named("fed"))
    fed.feed("rows", schema="a bigint")
    fed.write("sent", reads="rows", format="noop")
    assert re.search("feed 'rows'.*embedded feed.*channels='kafka'", refused(fed, None, broker, tmp_path))
    called = written()
    called.sink(name="batches", inputs="wrong")(lambda rows, batch_id: None)
    assert re.search(
        "sink 'batches'.*a sink function gets its rows only when a batch ends.*p.write",
        refused(called, None, broker, tmp_path),
    )
    limited = treadle.Pipeline(named("limited"))
    limited.topic("numbers", topic="realtime-there", format="raw", options={"maxOffsetsPerTrigger": 5})
    limited.write("sent", reads="numbers", format="noop")
    assert re.search(
        "topic 'numbers'.*option maxOffsetsPerTrigger.*leave it", refused(limited, spark, broker, tmp_path)
    )
    filed = written(format="parquet", options={"path": "x"})
    assert re.search("writer 'sent'.*'parquet'.*kafka, noop", refused(filed, None, broker, tmp_path))


def test_too_few_task_slots_are_told_before_anything_starts(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    wide = named("wide")
    produce(broker.bootstrap, wide, partitions=100)
    p = treadle.Pipeline(named("wide"))
    p.topic("numbers", topic=wide, schema="a bigint")
    p.operator(name="one", inputs="numbers")(lambda numbers: numbers)
    p.operator(name="two", inputs="one")(lambda one: one.groupBy("a").count())
    p.write("sent", reads="two", format="noop")
    p.write("more", reads="one", format="noop")
    p.operator(name="first", inputs="numbers")(lambda numbers: numbers.groupBy("a").count())
    p.write("counts", reads="first", format="noop")
    error = refused(p, spark, broker, tmp_path)
    # A hundred to read with `one`, and `two`; a hundred to read with `one`; a hundred to read, and `first`.
    assert re.search(r"need 302 task slots at once, but Spark has \d+ .*local\[302\]", error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enforce": "gate"}, "enforce can't be 'gate' in the realtime layout.*treadle attach"),
        ({"enforce": "pools"}, "enforce can't be 'pools'"),
        ({"policy": "edf"}, "policy can't be 'edf'.*treadle attach --policy edf"),
        ({"slots": 2}, "slots can't be 2"),
        ({"assign": "random"}, "assign can't be 'random'"),
        ({"batch": Rows(5)}, "batch can't be 5 rows"),
        ({"batch": 0.5}, "batch is 500ms, too short.*1s or more"),
    ],
)
def test_options_of_the_gate_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(layout="realtime", **options)
    assert (Options(layout="realtime").enforce, Options(layout="realtime", enforce="none").batch) == ("none", 5.0)
    assert (Options().enforce, Options().batch) == ("gate", 0.5)
