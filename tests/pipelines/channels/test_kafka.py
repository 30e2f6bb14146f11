from __future__ import annotations

import datetime
import decimal
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from support import until
from treadle import jars
from treadle.broker import Broker, free_port
from treadle.errors import ConfigError, EngineError
from treadle.pipelines.channels import encoded
from treadle.pipelines.channels.channel import Replan
from treadle.pipelines.channels.cluster import ANSWER, Cluster, client_config
from treadle.pipelines.channels.kafka import WORTH_DELETING, KafkaChannel
from treadle.pipelines.channels.segment import arrow_schema, conform
from treadle.pipelines.channels.topic import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = {"oldest": "1000000", "mean": "3000000"}


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    made = Cluster(broker.bootstrap)
    yield made
    made.close()


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """One of its own, as a query's is, so that what is set there stays there."""
    jars.fetch("spark-kafka")
    encoded.load(spark)
    return spark.newSession()


class Place:
    """A topic of its own and the folders around it."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self.topic = f"t-{uuid.uuid4().hex}"

    def checkpoint(self, consumer: str) -> Path:
        return self.folder / "checkpoints" / consumer

    def open(self, schema: str = "a bigint", limit_rows: int = 1000) -> KafkaChannel:
        where = self.folder / "channels" / "numbers"
        rest: dict[str, Any] = {"cluster": self.cluster, "limit_rows": limit_rows, "checkpoint": self.checkpoint}
        return KafkaChannel(where, self.topic, schema, **rest)

    def produce(self, *values: str) -> None:
        from confluent_kafka import Producer

        producer = Producer(client_config(self.cluster.bootstrap))
        for value in values:
            producer.produce(self.topic, value)
        assert producer.flush(30) == 0


@pytest.fixture
def place(tmp_path: Path, cluster: Cluster) -> Place:
    return Place(tmp_path, cluster)


def numbers(session: SparkSession, *values: int) -> Any:
    return session.createDataFrame([(value,) for value in values], "a bigint")


def read(session: SparkSession, channel: KafkaChannel | Topic, place: Place, consumer: str = "reader") -> list[Any]:
    """All rows that a query gets, in the way the runner does it; it goes on where the last one stopped."""
    found: list[Any] = []

    def batch(rows: Any, batch_id: int) -> None:
        until_decided(lambda: channel.begin(consumer, batch_id) is not None)
        found.extend(rows.collect())
        channel.finish(consumer)

    rows = channel.read(session, "", consumer)
    if consumer not in channel.positions:
        channel.register(consumer)
    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(place.checkpoint(consumer)))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return found


def until_decided(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_rows_of_every_type_come_back_as_they_were(session: SparkSession, place: Place) -> None:
    utc = datetime.UTC
    schema = (
        "flag boolean, tiny tinyint, small smallint, whole int, large bigint, half float, real double, "
        "money decimal(38, 18), text string, raw binary, day date, at timestamp, there timestamp_ntz, "
        "many array<int>, inner struct<x: int, y: string>, named map<string, timestamp>"
    )
    when = datetime.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=utc)
    local = datetime.datetime(2026, 3, 29, 2, 30, 0, 654321)
    money = decimal.Decimal("12345678901234567890.123456789012345678")
    full: tuple[Any, ...] = (
        True,
        -1,
        300,
        2**31 - 1,
        -(2**63),
        0.1,
        1 / 3,
        money,
        'ö "\n\\ 漢',
        b"\x00\xff\x80",
        when.date(),
        when,
    )
    full += (local, [1, None, 3], (None, "y"), {"k": when})
    odd: tuple[Any, ...] = (
        None,
        None,
        None,
        None,
        None,
        float("inf"),
        float("-inf"),
        None,
        "",
        b"",
        None,
        None,
        None,
        [],
        None,
        {},
    )
    channel = place.open(schema)
    rows = session.createDataFrame([full, odd], channel.schema)
    assert channel.append(rows, 0, NOW) == 2
    came = read(session, channel, place)
    assert sorted(map(repr, came)) == sorted(map(repr, rows.collect()))
    nothing = session.createDataFrame([(None,) * len(channel.schema.names)], channel.schema)
    assert channel.append(nothing, 1, NOW) == 1
    assert read(session, channel, place) == nothing.collect()


def test_rows_that_python_writes_are_those_that_spark_reads(session: SparkSession, place: Place) -> None:
    schema = "text string, raw binary, at timestamp, money decimal(20, 3), real double, day date, many array<bigint>"
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
    full = {"text": "ö", "raw": b"\xff", "at": when, "money": decimal.Decimal("12345678901234567.125"), "real": 0.1}
    full |= {"day": when.date(), "many": [1, 2**60]}
    nothing = {**dict.fromkeys(full), "real": float("inf")}
    table = conform([full, nothing], arrow_schema(schema), "")
    place.cluster.ensure(place.topic, {})
    place.produce(*[value.decode() for value in encoded.values(table)])
    rest: dict[str, Any] = {"cluster": place.cluster, "limit_rows": 10, "checkpoint": place.checkpoint}
    topic = Topic("numbers", place.topic, schema, **rest)
    came = sorted((row.asDict() for row in read(session, topic, place)), key=lambda row: row["text"] or "")
    assert came[0] == nothing
    local = when.astimezone().replace(tzinfo=None)  # as PySpark gives timestamps
    assert came[1] == {**full, "raw": bytearray(b"\xff"), "at": local}


def test_a_type_that_can_not_be_carried_is_refused_by_name(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"column 'deep\.m' is map<int,string>"):
        place.open("deep struct<m: map<int, string>>")


def test_a_batch_that_is_there_is_not_written_again(session: SparkSession, place: Place) -> None:
    channel = place.open()
    assert channel.append(numbers(session, 1, 2), 0, NOW) == 2
    assert channel.append(numbers(session, 1, 2), 0, NOW) == 0
    again = place.open()
    assert again.append(numbers(session, 1, 2), 0, NOW) == 0
    assert again.append(numbers(session, 3), 1, NOW) == 1
    assert sorted(row.a for row in read(session, again, place)) == [1, 2, 3]


def test_what_a_crashed_attempt_has_left_is_never_read(session: SparkSession, place: Place) -> None:
    channel = place.open()
    channel.append(numbers(session, 1, 2), 0, NOW)
    place.produce('{"a": 3}')  # written, but the process is killed before the ledger says so
    again = place.open()
    assert again.append(numbers(session, 3, 4), 1, NOW) == 2
    again.register("reader")
    assert again.backlog("reader").rows == 4
    assert sorted(row.a for row in read(session, again, place)) == [1, 2, 3, 4]
    assert again.backlog("reader").rows == 0


def test_void_rows_are_told_partition_by_partition(session: SparkSession, place: Place) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin: Any = AdminClient(client_config(place.cluster.bootstrap))
    admin.create_topics([NewTopic(place.topic, num_partitions=3)])[place.topic].result()
    until_decided(lambda: len(place.cluster.partitions(place.topic)) == 3)
    place.open().append(numbers(session, *range(30)).repartition(3), 0, NOW)
    place.produce(*['{"a": 99}'] * 30)
    again = place.open()
    again.append(numbers(session, *range(30, 60)).repartition(3), 1, NOW)
    assert sorted(row.a for row in read(session, again, place)) == list(range(60))


def test_rows_that_all_have_read_are_deleted(session: SparkSession, place: Place) -> None:
    channel = place.open()
    channel.append(session.range(WORTH_DELETING).selectExpr("id AS a"), 0, NOW)
    assert len(read(session, channel, place)) == WORTH_DELETING
    assert channel.collect() == 0  # Spark has not begun the next batch, so it may still repeat this one
    channel.append(numbers(session, 1), 1, NOW)
    assert len(read(session, channel, place)) == 1
    assert channel.collect() == WORTH_DELETING
    until_decided(lambda: place.cluster.ends(place.topic, [0], first=True) == {0: WORTH_DELETING})
    assert place.open().ledger.batch == 1


def test_rows_that_come_late_make_a_query_start_anew_without_them(session: SparkSession, place: Place) -> None:
    channel = place.open()
    channel.append(numbers(session, 1), 0, NOW)
    rows = channel.read(session, "", "reader")  # planned before the late row is there
    channel.register("reader")
    place.produce('{"a": 99}')
    until_decided(lambda: bool(channel.ledger.parts.voids({})))
    channel.append(numbers(session, 2), 1, NOW)
    raised: list[type] = []

    def batch(_: Any, batch_id: int) -> None:
        try:
            channel.begin("reader", batch_id)
        except Replan:
            raised.append(Replan)
            raise

    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(place.checkpoint("reader")))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="rows of a failed attempt"):
        query.awaitTermination()
    assert raised == [Replan]
    assert sorted(row.a for row in read(session, channel, place)) == [1, 2]


def test_a_batch_whose_rows_are_not_decided_yet_has_to_wait(session: SparkSession, place: Place) -> None:
    channel = place.open()
    channel.append(numbers(session, 1), 0, NOW)
    channel.register("reader")
    offsets = place.checkpoint("reader") / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text(f'v1\n{{}}\n{{"{place.topic}":{{"0":2}}}}\n')
    channel.read(session, "", "reader")
    assert channel.begin("reader", 0) is None
    channel.append(numbers(session, 2), 1, {"oldest": "5000000", "mean": "5000000"})
    assert channel.begin("reader", 0) == [(1, 1_000_000, 3_000_000), (1, 5_000_000, 5_000_000)]


def test_the_backlog_is_exact_and_survives_a_restart(session: SparkSession, place: Place) -> None:
    channel = place.open(limit_rows=3)
    channel.register("reader")
    assert not channel.full
    channel.append(numbers(session, 1, 2), 0, NOW)
    channel.append(numbers(session, 3), 1, {"oldest": "7000000", "mean": "9000000"})
    assert channel.backlog("reader") == (3, 3 * len('{"a":1}'), 1.0, 5.0)
    assert channel.full
    read(session, channel, place)
    assert not channel.full
    channel.append(numbers(session, 4), 2, NOW)
    again = place.open()
    again.register("reader")
    assert again.backlog("reader").rows == again.rows == 1


def test_the_arrival_comes_from_a_column_where_one_has_it(session: SparkSession, place: Place) -> None:
    channel = place.open("a bigint, at timestamp")
    channel.register("reader")
    rows = session.sql("SELECT 1L AS a, timestamp_seconds(10) AS at UNION ALL SELECT 2L, timestamp_seconds(30)")
    channel.append(rows, 0, {"born": "at"})
    assert channel.backlog("reader")[2:] == (10.0, 20.0)


def test_a_second_writer_is_noticed(session: SparkSession, place: Place) -> None:
    channel = place.open()
    over = threading.Event()

    def disturb() -> None:
        while not over.is_set():
            place.produce('{"a": 0}')

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        with pytest.raises(EngineError, match="another program writes to it"):
            channel.append(numbers(session, 1), 0, NOW)
    finally:
        over.set()
        thread.join()
    channel.register("reader")
    assert channel.append(numbers(session, 1), 0, NOW) == 1
    assert [row.a for row in read(session, channel, place)] == [1]


def commit(checkpoint: Path, batch: int, offsets: dict[str, dict[str, int]] | None = None) -> None:
    """What Spark writes into a checkpoint when a batch is done."""
    for folder, text in (("offsets", json.dumps(offsets or {})), ("commits", '{"nextBatchWatermarkMs":0}')):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        (checkpoint / folder / str(batch)).write_text(f"v1\n{text}\n")


def test_a_batch_without_rows_is_in_the_ledger_too(session: SparkSession, place: Place) -> None:
    channel = place.open()
    channel.append(numbers(session, 1), 0, NOW)
    assert channel.append(numbers(session).limit(0), 1, NOW) == 0
    commit(place.checkpoint("numbers"), 1)
    again = place.open()
    assert again.batch == 1
    assert [row.a for row in read(session, again, place)] == [1]


def test_a_ledger_behind_the_checkpoint_of_its_hop_is_refused_and_nothing_is_void(
    session: SparkSession, place: Place
) -> None:
    channel = place.open()
    for batch in range(4):
        channel.append(numbers(session, batch), batch, NOW)
        commit(place.checkpoint("numbers"), batch)
    whole = channel.ledger.file.read_text().splitlines(keepends=True)
    for left in (3, 2, 0):
        channel.ledger.file.write_text("".join(whole[:left]))
        missing = "batch 3" if left == 3 else f"batches {left} to 3"
        with pytest.raises(EngineError, match=f"{missing} of hop 'numbers'") as refused:
            place.open()
        assert place.topic in str(refused.value)
        assert channel.ledger.file.read_text() == "".join(whole[:left])  # the next start is refused as well
    channel.ledger.file.write_text("".join(whole))
    assert sorted(row.a for row in read(session, place.open(), place)) == [0, 1, 2, 3]
    channel.ledger.file.write_text("".join(whole[:2]))
    with pytest.raises(EngineError) as refused:
        place.open()
    with channel.ledger.file.open("a") as ledger:  # as the remedy says, for those who do without these rows
        ledger.write(refused.value.remedy.partition("add the line ")[2] + "\n")
    assert place.open().batch == 3


def test_a_ledger_without_lines_for_batches_that_wrote_nothing_is_taken(session: SparkSession, place: Place) -> None:
    """As earlier versions wrote them: all rows of the topic are in the ledger, so none can be lost."""
    channel = place.open()
    channel.append(numbers(session, 1), 0, NOW)
    commit(place.checkpoint("numbers"), 2)
    assert [row.a for row in read(session, place.open(), place)] == [1]


def test_a_ledger_behind_what_a_reader_has_committed_is_refused(session: SparkSession, place: Place) -> None:
    channel = place.open()
    for batch in range(2):
        channel.append(numbers(session, batch), batch, NOW)
    commit(place.checkpoint("reader"), 7, {place.topic: {"0": 2}})
    whole = channel.ledger.file.read_text().splitlines(keepends=True)
    assert place.open().batch == 1
    channel.ledger.file.write_text(whole[0])
    with pytest.raises(EngineError, match="hop 'reader' has read up to offset 2 of partition 0, the ledger ends at 1"):
        place.open()
    commit(place.checkpoint("reader"), 8, {place.topic: {"0": 3}})
    with pytest.raises(EngineError, match="fewer rows than"):
        place.open()


def test_a_topic_that_was_deleted_under_its_ledger_is_an_error(session: SparkSession, place: Place) -> None:
    from confluent_kafka.admin import AdminClient

    place.open().append(numbers(session, 1), 0, NOW)
    admin: Any = AdminClient(client_config(place.cluster.bootstrap))
    admin.delete_topics([place.topic])[place.topic].result()
    until_decided(lambda: not place.cluster.partitions(place.topic))
    with pytest.raises(EngineError, match="fewer rows than the ledger says"):
        place.open()


def test_a_topic_of_others_is_counted_from_where_it_begins(place: Place) -> None:
    rest: dict[str, Any] = {"cluster": place.cluster, "limit_rows": 10, "checkpoint": place.checkpoint}
    with pytest.raises(EngineError, match="does not exist"):
        Topic("numbers", place.topic, "a bigint", **rest)
    place.cluster.ensure(place.topic, {})
    place.produce('{"a": 1}', '{"a": 2}')
    topic = Topic("numbers", place.topic, "a bigint", **rest)
    topic.register("reader")
    assert topic.backlog("reader").rows == 2
    late = Topic("later", place.topic, "a bigint", options={"startingOffsets": "latest"}, **rest)
    late.register("reader")
    assert late.backlog("reader").rows == 0
    before = time.time()
    place.produce('{"a": 3}')
    topic.refresh()
    assert topic.backlog("reader").rows == 3
    until_decided(lambda: late.backlog("reader").rows == 1)
    assert before - 1 < late.backlog("reader").oldest <= time.time()


def test_a_broker_that_is_not_there_is_one_clear_error_within_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(EngineError, match="treadle kafka start"):
        Cluster(f"127.0.0.1:{free_port()}")
    assert time.monotonic() - began < 2 * ANSWER


class OnceLost:
    """Stands in for librdkafka's client, the first of which never reaches a broker again once `gone` is set.

    The real one does this when the last answer of a broker that stops names no brokers, which can't be had at will.
    """

    made: ClassVar[list[OnceLost]] = []
    gone = threading.Event()

    def __init__(self, _: dict[str, Any]) -> None:
        self.made.append(self)

    @property
    def dead(self) -> bool:
        return self is self.made[0] and self.gone.is_set()

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(brokers={} if self.dead else {1: "broker"}, topics={})

    def list_offsets(self, wanted: dict[Any, Any], request_timeout: float) -> dict[Any, Any]:
        answers: dict[Any, Any] = {each: Future() for each in wanted}
        for answer in answers.values() if not self.dead else ():
            answer.set_result(SimpleNamespace(offset=7))
        return answers


def test_a_client_that_lost_its_brokers_for_ever_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", OnceLost)
    monkeypatch.setattr("treadle.pipelines.channels.cluster.ANSWER", 0.05)
    monkeypatch.setattr(OnceLost, "made", [])
    OnceLost.gone.clear()
    cluster = Cluster("127.0.0.1:1")
    try:
        seen: list[dict[int, int]] = []
        cluster.watch("rows", "rows", [0], lambda ends, _: seen.append(ends))
        until(lambda: seen)
        OnceLost.gone.set()
        until(lambda: len(OnceLost.made) > 1)
        assert cluster.lost > 0.0
        count = len(seen)
        until(lambda: cluster.reachable and len(seen) > count)
        assert cluster.ends("rows", [0]) == {0: 7}
    finally:
        cluster.close()
