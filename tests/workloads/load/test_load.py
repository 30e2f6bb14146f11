"""The load process: every row that is due arrives once, with the time at which it was due, and delays are reported."""

from __future__ import annotations

import datetime
import json
import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import named, until
from treadle.broker import Broker, free_port
from treadle.errors import ConfigError, EngineError, TreadleError
from treadle.pipelines.channels import cluster, log
from treadle.workloads.load import Channel, Load, Rate, Topic, bursty, constant, stepped
from treadle.workloads.load.rates import SECOND, Even, Poisson, Schedule, Whole
from treadle.workloads.load.to_kafka import TopicSink
from workloads.load.load_makers import lines, numbers

LINES, NUMBERS = (f"workloads.load.load_makers:{name}" for name in ("lines", "numbers"))


def channel(folder: Path, schema: str = "id long, created timestamp, line string") -> str:
    log.Writer(folder, schema).close()
    return str(folder)


def feed(folder: str, rate: float | Rate, **options: Any) -> Channel:
    """A channel that gets 17 different lines."""
    return Channel(folder=folder, lines=LINES, count=17, seed=5, rate=rate, **options)


def sent(load: Load, target: str) -> int:
    reports = load.report()
    return reports[-1].targets[target].sent if reports else 0


def at(load: Load, moment: float) -> int:
    """Microseconds since the beginning of the load."""
    return round((moment - load.monotonic) * SECOND)


def micros(table: Any) -> list[int]:
    created: list[int] = table.column("created").cast("int64").to_pylist()
    return created


def halt(pid: int, seconds: float) -> None:
    """Stop a process for so long."""
    os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    until(lambda: time.monotonic() > begun + seconds)
    os.kill(pid, signal.SIGCONT)


def test_every_due_row_reaches_its_channel_once_in_order_and_created_when_it_was_due(tmp_path: Path) -> None:
    first: dict[str, Rate] = {
        "even": constant(3000.0),
        "bursts": bursty(7777.7, 0.13, 0.21),
        "random": stepped([(0.3, 500.0), (1.0, 2500.0)]),
        "typed": constant(0.0),
    }
    second: dict[str, float | Rate] = {"even": 123.4, "random": bursty(900.0, 0.1, 0.1), "typed": 2000.0}
    where = {name: channel(tmp_path / name) for name in ("even", "bursts", "random")}
    where["typed"] = channel(tmp_path / "typed", "id long, created timestamp, square long, v double")
    core = min(os.sched_getaffinity(0))
    targets = {
        "even": feed(where["even"], first["even"]),
        "bursts": feed(where["bursts"], first["bursts"], first=1000),
        "random": feed(where["random"], first["random"], poisson=True),
        "typed": Channel(folder=where["typed"], table=NUMBERS, seed=9),
    }
    with Load(targets, cores=[core]) as load:
        assert os.sched_getaffinity(load.pid) == {core}
        until(lambda: all(sent(load, name) > 500 for name in where if name != "typed"))
        changed = at(load, load.rates(second))
        until(lambda: sent(load, "typed") > 500)
        outcome = load.stop()
    for name, total in outcome.totals.items():
        schedule = Schedule(first[name], Poisson(5) if name == "random" else Even())
        given = second.get(name, 0.0)
        schedule.change(changed, given if isinstance(given, Rate) else constant(given))
        table = log.read(where[name])
        assert total.sent == total.due == table.num_rows
        begin = 1000 if name == "bursts" else 0
        assert table.column("id").to_pylist() == list(range(begin, begin + total.due))
        assert micros(table) == (load.epoch + schedule.times(0, total.due)).tolist()
        assert begin or micros(table)[-1] > load.epoch + changed
    even, typed = log.read(where["even"]), log.read(where["typed"])
    assert micros(even)[:3] == [load.epoch + after for after in (334, 667, 1000)]
    known = lines(17, seed=5)
    assert even.column("line").to_pylist() == [known[number % 17] for number in range(even.num_rows)]
    made_again = numbers(0, typed.num_rows, np.random.default_rng(9))
    assert typed.select(["square", "v"]).to_pylist() == made_again.to_pylist()


def test_the_rows_of_a_moment_are_the_rate_times_the_time(tmp_path: Path) -> None:
    rate = 4000.0
    with Load({"feed": feed(channel(tmp_path), rate)}) as load:
        until(lambda: sent(load, "feed") > 3000)
        during = load.report()
        outcome = load.stop()
    assert log.read(tmp_path).num_rows / (rate * outcome.seconds) == pytest.approx(1.0, rel=0.005)
    for before, after in pairwise(during):
        due = after.targets["feed"].due - before.targets["feed"].due
        assert due == pytest.approx(rate * (after.time - before.time), abs=1.01)


def test_a_process_that_was_stopped_says_so_and_makes_up_for_it(tmp_path: Path) -> None:
    rate, pause = 5000.0, 0.6
    with Load({"feed": feed(channel(tmp_path), rate)}) as load:
        until(lambda: sent(load, "feed") > 500)
        halt(load.pid, pause)
        until(lambda: max(report.targets["feed"].lag for report in load.report()) > pause - 0.1)
        seen = load.report()
        until(lambda: len(load.report()) > len(seen) + 1)
        outcome = load.stop()
    table = log.read(tmp_path)
    assert table.column("id").to_pylist() == list(range(outcome.totals["feed"].due))
    # The rows that were due while the process could not run have the creation times of rows that were in time.
    assert set(np.diff(micros(table)).tolist()) == {200}
    assert outcome.totals["feed"].worst >= pause - 0.1
    assert outcome.late * outcome.seconds >= pause - 2 * outcome.limit
    assert not outcome.kept


def created(text: str) -> int:
    """Microseconds since 1970 of an ISO time in UTC, exactly."""
    assert len(text) == len("2026-01-01T00:00:00.000000Z")
    moment = datetime.datetime.fromisoformat(text)
    return int(moment.replace(microsecond=0).timestamp()) * SECOND + moment.microsecond


def make_topic(broker: Broker, partitions: int) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    name = named("load")
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([NewTopic(name, num_partitions=partitions)])[name].result()
    until(lambda: name in client.list_topics().topics)
    return name


def consumed(broker: Broker, topic: str) -> list[list[dict[str, Any]]]:
    """The rows of each partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": named("test")})
    found = []
    for partition in range(len(consumer.list_topics(topic).topics[topic].partitions)):
        consumer.assign([TopicPartition(topic, partition, 0)])
        end = consumer.get_watermark_offsets(TopicPartition(topic, partition))[1]
        rows: list[dict[str, Any]] = []
        while len(rows) < end:
            rows += [json.loads(message.value() or b"") for message in consumer.consume(end - len(rows), 1.0)]
        found.append(rows)
    consumer.close()
    return found


def test_every_due_row_reaches_its_topic_once_in_order_and_created_when_it_was_due(broker: Broker) -> None:
    one, three = make_topic(broker, 1), make_topic(broker, 3)
    targets = {
        "one": Topic(servers=broker.bootstrap, topic=one, lines=LINES, count=13, seed=2, rate=3000.0),
        "three": Topic(servers=broker.bootstrap, topic=three, table=NUMBERS, count=10, first=50),
    }
    with Load(targets) as load:
        until(lambda: sent(load, "one") > 500)
        changed = at(load, load.rates({"three": 5000.0}))
        until(lambda: sent(load, "three") > 500)
        halt(broker.pid, 0.4)
        until(lambda: max(report.targets["three"].lag for report in load.report()) > 0.3)
        outcome = load.stop()
    (rows,) = consumed(broker, one)
    total = outcome.totals["one"]
    assert [row["id"] for row in rows] == list(range(total.due))
    assert total.sent == total.due == changed * 3000 // SECOND
    due: Whole = Schedule(constant(3000.0), Even()).times(0, total.due)
    assert [created(row["created"]) for row in rows] == (load.epoch + due).tolist()
    known = lines(13, seed=2)
    assert [row["line"] for row in rows] == [known[number % 13] for number in range(total.due)]

    parts = consumed(broker, three)
    total = outcome.totals["three"]
    assert total.sent == total.due == sum(map(len, parts))
    assert total.worst > 0.3
    squares = [number**2 for number in range(10)]
    for partition, part in enumerate(parts):
        assert [row["id"] - 50 for row in part] == list(range(partition, total.due, 3))
        assert all(row["square"] == squares[(row["id"] - 50) % 10] for row in part)
        assert all(created(row["created"]) == load.epoch + changed + 200 * (row["id"] - 49) for row in part)


def test_rows_that_a_silent_broker_has_not_confirmed_are_an_error_at_the_end(broker: Broker) -> None:
    target = Topic(servers=broker.bootstrap, topic=make_topic(broker, 1), lines=LINES, rate=1000.0)
    load = Load({"quiet": target}, patience=0.5)
    until(lambda: sent(load, "quiet") > 10)
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        until(lambda: load.report()[-1].targets["quiet"].lag > 0.2)
        with pytest.raises(EngineError, match=r"quiet: \d+ rows were not confirmed within 0\.5 s"):
            load.stop()
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_a_row_that_the_broker_would_refuse_is_an_error(broker: Broker) -> None:
    topic = make_topic(broker, 1)
    target = Topic(servers=broker.bootstrap, topic=topic, lines=f"{LINES[:-5]}long_lines", count=1, rate=100.0)
    load = Load({"long": target})
    with pytest.raises(EngineError, match=f"{topic}.*a row was refused: .*too large"):
        until(lambda: load.report() and False)
    with pytest.raises(EngineError, match="a row was refused"):
        load.stop()


def _nowhere(folder: Path) -> Channel:
    return Channel(folder=str(folder / "nowhere"), lines=LINES)


def _others(folder: Path) -> Channel:
    return Channel(folder=channel(folder, "id long, created timestamp, text string"), lines=LINES)


def _failing(folder: Path) -> Channel:
    return Channel(folder=channel(folder), lines=f"{LINES[:-5]}fails")


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        (_nowhere, EngineError, "nowhere: there is no channel here"),
        (_others, EngineError, "column 'text' is missing"),
        (_failing, ConfigError, "load_makers:fails: failed: ValueError: no data here"),
    ],
)
def test_a_target_that_cannot_be_filled_is_an_error_at_the_start(
    target: Callable[[Path], Channel],
    kind: type[TreadleError],
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(kind, match=message):
        Load({"feed": target(tmp_path)})
    assert "Traceback" not in capfd.readouterr().err


def test_a_broker_that_does_not_answer_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWER", 0.2)
    port = free_port()
    with pytest.raises(EngineError, match=f"no Kafka broker answers at 127.0.0.1:{port}"):
        TopicSink(Topic(servers=f"127.0.0.1:{port}", topic="t", lines=LINES))


def test_a_topic_that_is_not_there_is_an_error_at_the_start(broker: Broker) -> None:
    with pytest.raises(EngineError, match=r"topic 'nothing-here' .* there is no such topic"):
        TopicSink(Topic(servers=broker.bootstrap, topic="nothing-here", lines=LINES))


def test_a_process_that_was_killed_is_an_error(tmp_path: Path) -> None:
    load = Load({"feed": Channel(folder=channel(tmp_path), lines=LINES)})
    with pytest.raises(ConfigError, match="there is no target 'fed'"):
        load.rates({"fed": 1.0})
    os.kill(load.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="the load process ended with code -9"):
        load.rates({"feed": 1.0})
    with pytest.raises(EngineError, match="the load process ended with code -9"):
        load.stop()
    with pytest.raises(EngineError, match="the load process ended with code -9"):
        load.report()


def test_a_load_whose_failure_was_raised_ends_without_raising_it_again(tmp_path: Path) -> None:
    with Load({"feed": Channel(folder=channel(tmp_path), lines=LINES)}) as load:
        os.kill(load.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="the load process ended"):
            load.stop()
