from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from pipelines.topics import numbers, produce
from support import LONG, named, until
from treadle import jars
from treadle.broker import Broker, free_port
from treadle.broker import stop as stop_broker
from treadle.errors import EngineError
from treadle.linux.files.file_lock import holder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(autouse=True)
def _spark_has_kafka(spark: SparkSession) -> None:
    jars.fetch("spark-kafka")


@pytest.fixture
def own_broker(kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that a test may stop and start."""
    started = Broker.start(tmp_path_factory.mktemp("own-kafka"), free_port(), timeout=LONG)
    yield started
    stop_broker(started.folder)


def test_a_topic_is_a_source_whose_bad_rows_are_counted_and_told(
    spark: SparkSession, broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, came = named("in"), list[int]()
    values = numbers(20)
    produce(broker.bootstrap, topic, *values[:10], "{torn", '{"a": "no number"}', *values[10:])
    p = treadle.Pipeline(named("bad"))
    p.topic("raw", topic=topic, schema="a bigint")

    @p.operator
    def doubled(raw: DataFrame) -> DataFrame:
        return raw.selectExpr("2 * a AS b")

    @p.sink
    def out(doubled: DataFrame, batch_id: int) -> None:
        came.extend(row.b for row in doubled.collect())

    caplog.set_level(logging.WARNING, "treadle.pipelines")
    with p.start(spark, folder=tmp_path / "work", kafka=broker.bootstrap) as run:
        run.stop(drain=True, timeout=LONG)
        hops = run.status()["hops"]
    assert sorted(came) == [2 * a for a in range(20)]
    assert hops["doubled"]["bad_rows"] == 2
    assert hops["doubled"]["rows_out"] == 20
    assert f"topic '{topic}'" in caplog.text
    assert "offset 10" in caplog.text


def test_the_size_of_a_batch_follows_from_what_its_rows_cost(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topics, sizes = (named("sized"), named("own")), {"out": list[int](), "own": list[int]()}
    for topic in topics:
        produce(broker.bootstrap, topic, *numbers(2300))
    p = treadle.Pipeline(named("sized"))
    p.topic("read", topic=topics[0], schema="a bigint")
    p.topic("limited", topic=topics[1], schema="a bigint", options={"maxOffsetsPerTrigger": 1150})

    @p.sink
    def out(read: DataFrame) -> None:
        sizes["out"].append(read.count())
        time.sleep(1e-3 * sizes["out"][-1])

    @p.sink
    def own(limited: DataFrame) -> None:
        sizes["own"].append(limited.count())

    options = {"kafka": broker.bootstrap, "layout": "fused", "batch": "50ms"}
    with p.start(spark, folder=tmp_path / "work", **options) as run:
        run.stop(drain=True, timeout=LONG)
        hops = run.status()["hops"]
    assert sum(sizes["out"]) == hops["out"]["rows_in"] == hops["out"]["rows_out"] == 2300
    assert sizes["out"][0] == 1000
    assert max(sizes["out"][2:]) <= 200, "the first one that counts was the second"
    assert max(sizes["own"]) <= 1150


def test_a_raw_topic_has_kafkas_own_columns_and_two_may_be_one_query(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    first, second = named("one"), named("two")
    produce(broker.bootstrap, first, "x", "y")
    produce(broker.bootstrap, second, *numbers(3))
    p = treadle.Pipeline(named("raw"))
    p.topic("one", topic=first, format="raw")
    p.topic("two", topic=second, schema="a bigint")
    came: list[tuple[str, int]] = []

    @p.operator
    def both(one: DataFrame, two: DataFrame) -> DataFrame:
        return one.selectExpr("cast(value AS string) AS v", "offset").union(two.selectExpr("'z'", "a"))

    @p.sink
    def out(both: DataFrame, batch_id: int) -> None:
        came.extend((row.v, row.offset) for row in both.collect())

    with p.start(spark, folder=tmp_path / "work", layout="fused", kafka=broker.bootstrap) as run:
        run.stop(drain=True, timeout=LONG)
        assert run.status()["hops"]["out"]["rows_in"] == 5
    assert sorted(came) == [("x", 0), ("y", 1), ("z", 0), ("z", 1), ("z", 2)]


def feed_and_topic(topic: str, came: list[int]) -> treadle.Pipeline:
    p = treadle.Pipeline(named("kafka"))
    p.feed("fed", schema="a bigint")
    p.topic("sent", topic=topic, schema="a bigint")

    @p.operator
    def large(fed: DataFrame) -> DataFrame:
        return fed.selectExpr("a + 1000 AS b")

    @p.operator
    def both(large: DataFrame, sent: DataFrame) -> DataFrame:
        return large.union(sent)

    @p.sink(priority=2)
    def out(both: DataFrame, batch_id: int) -> None:
        came.extend(row.b for row in both.collect())

    @p.sink
    def count(large: DataFrame, batch_id: int) -> None:
        large.count()

    return p


def test_hops_joined_by_topics_give_every_row_once_and_go_on_after_a_restart(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic, came = named("in"), list[int]()
    p = feed_and_topic(topic, came)
    options: dict[str, Any] = {"folder": tmp_path / "work", "channels": "kafka", "kafka": broker.bootstrap}
    for start in (0, 100):
        produce(broker.bootstrap, topic, *numbers(100, start))
        with p.start(spark, **options) as run:
            feed = run.feed("fed")
            feed.append([{"a": a} for a in range(start, start + 50)])
            feed.append([{"a": a} for a in range(start + 50, start + 100)], born=(1.0, 2.0))
            run.stop(drain=True, timeout=LONG)
            status = run.status()
        assert status["hops"]["out"]["rows_in"] == 200
        assert status["hops"]["out"]["latency_seconds"]["max"] > 1e6
        assert status["channels"]["both"] == {"rows": 0, "full": False}
    assert sorted(came) == [*range(200), *range(1000, 1200)]
    with pytest.raises(EngineError, match="another kind of channels"):
        p.start(spark, folder=tmp_path / "work")
    ledger = tmp_path / "work" / "channels" / "large" / "ledger"
    whole = ledger.read_bytes()
    ledger.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))  # as after a power loss, if it were not synced
    with pytest.raises(EngineError, match=f"of hop 'large'.* topic '{p.name}.large'"):
        p.start(spark, **options)
    ledger.write_bytes(whole)
    shutil.rmtree(tmp_path / "work" / "checkpoints" / "large")  # batch 0 would be taken for one that is there already
    with pytest.raises(EngineError, match="but its checkpoint has none"):
        p.start(spark, **options)
    assert holder(tmp_path / "work") is None


def test_an_operator_that_fails_is_told_and_a_stop_ends_what_waits(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = named("in")
    produce(broker.bootstrap, topic, *numbers(10))
    p = treadle.Pipeline(named("fails"))
    p.topic("sent", topic=topic, schema="a bigint")
    entered, leave = threading.Event(), threading.Event()

    @p.sink
    def fails(sent: DataFrame, batch_id: int) -> None:
        raise RuntimeError("no such account")

    @p.sink(priority=9)
    def holds(sent: DataFrame, batch_id: int) -> None:
        entered.set()
        leave.wait(LONG)

    options: dict[str, Any] = {"folder": tmp_path / "work", "kafka": broker.bootstrap, "retries": 0, "slots": 1}
    with p.start(spark, **options) as run:
        until(entered.is_set)
        until(lambda: run.status()["hops"]["fails"]["state"] in ("waiting", "failed"))
        leave.set()
        with pytest.raises(EngineError, match="no such account"):
            run.wait(LONG)


def test_a_broker_that_is_down_at_the_start_is_told_within_seconds_and_leaves_the_folder_free(
    spark: SparkSession, tmp_path: Path
) -> None:
    p = feed_and_topic("nowhere", [])
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"no Kafka broker answers .*treadle kafka start"):
        p.start(spark, folder=tmp_path / "work", kafka=f"127.0.0.1:{free_port()}")
    assert time.monotonic() - began < 30  # Spark itself would try for a minute
    assert holder(tmp_path / "work") is None
    assert not (tmp_path / "work" / "pipeline.json").exists()  # it may still become that of other channels


def test_a_broker_that_vanishes_and_comes_back_costs_no_row_and_no_retry(
    spark: SparkSession, own_broker: Broker, tmp_path: Path
) -> None:
    topic = named("in")
    batches: dict[int, list[int]] = {}
    produce(own_broker.bootstrap, topic, *numbers(300))
    p = treadle.Pipeline(named("vanishes"))
    p.topic("sent", topic=topic, schema="a bigint", options={"maxOffsetsPerTrigger": 20})

    @p.operator
    def passed(sent: DataFrame) -> DataFrame:
        return sent.selectExpr("a")

    @p.sink
    def out(passed: DataFrame, batch_id: int) -> None:
        batches[batch_id] = [row.a for row in passed.collect()]

    options: dict[str, Any] = {"channels": "kafka", "kafka": own_broker.bootstrap, "retries": 0}
    with p.start(spark, folder=tmp_path / "work", **options) as run:
        until(lambda: any(hop["state"] == "running" for hop in run.status()["hops"].values()))  # a first batch
        own_broker.stop()
        until(lambda: any(hop["state"] == "restarting" for hop in run.status()["hops"].values()))
        Broker.start(own_broker.folder, own_broker.port, timeout=LONG)
        produce(own_broker.bootstrap, topic, *numbers(100, 300))
        run.stop(drain=True, timeout=LONG)
        run.check()
    assert sorted(a for rows in batches.values() for a in rows) == list(range(400))


def test_sinks_come_and_go_while_rows_flow_through_topics(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    p, came, count = treadle.Pipeline(named("reload")), {"one": list[int](), "two": list[int]()}, 0
    p.feed("fed", schema="a bigint")

    @p.operator
    def copied(fed: DataFrame) -> DataFrame:
        return fed

    for name in came:

        def out(copied: DataFrame, to: list[int] = came[name]) -> None:
            to.extend(sorted(row.a for row in copied.collect()))

        p.sink(name=name, inputs="copied")(out)

    def goes_on(*sinks: str) -> None:
        nonlocal count
        feed.append([{"a": a} for a in range(count, count + 50)])
        count += 50
        until(lambda: all(came[name] and came[name][-1] == count - 1 for name in sinks), run)

    options = {"channels": "kafka", "kafka": broker.bootstrap}
    with p.start(spark, folder=tmp_path / "work", **options) as run:
        feed = run.feed("fed")
        goes_on("one", "two")
        query = run.hops["one"].query.runId
        run.remove("two")
        goes_on("one")
        until(lambda: run.channels["copied"]._first()[0] >= 50, run)  # the ledger has forgotten what all have read
        run.add("two")
        goes_on("one", "two")
        assert run.hops["one"].query.runId == query
        run.stop(drain=True, timeout=LONG)
    assert came["one"] == list(range(count))
    assert came["two"] == [*range(50), *range(came["two"][50], count)]  # what all had read meanwhile is gone
