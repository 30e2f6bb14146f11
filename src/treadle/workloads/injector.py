"""Fills topics with the rows of a workload at changing rates from a separate process, and reports the rows sent.

`DIFFERENT` rows per topic are made in advance and sent repeatedly. The injector does not slow down when the readers do,
and it makes up for its own delays. It reports only rows that the broker has confirmed.
"""

from __future__ import annotations

import importlib
import json
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from treadle.errors import EngineError

DIFFERENT = 4_000
"""Number of different rows for each topic; after the last one they are sent again."""
INTERVAL = 0.01
TELL = 0.1
PATIENCE = 120.0


class Sent(NamedTuple):
    """The number of confirmed rows of each topic until `time` (monotonic)."""

    time: float
    rows: Mapping[str, int]


class Injector:
    """The injecting process, until `stop`. `topics` maps each topic to a function that makes a row (`module:name`)."""

    def __init__(self, servers: str, topics: Mapping[str, str]) -> None:
        self.sent: list[Sent] = []
        command = [sys.executable, "-m", "treadle.workloads.injector", servers, json.dumps(dict(topics))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, name="treadle-injector", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def rates(self, rates: Mapping[str, float]) -> None:
        """Set the rate of each topic in rows per second; other topics get none."""
        self._order({"rates": dict(rates)})

    def heap(self, rows: Mapping[str, int]) -> None:
        """Send a backlog of rows to each topic; return when the broker has them."""
        before = self.sent[-1].rows if self.sent else {}
        wanted = {topic: before.get(topic, 0) + count for topic, count in rows.items()}
        self._order({"heap": dict(rows)})
        until = time.monotonic() + PATIENCE
        while not self.sent or any(self.sent[-1].rows.get(topic, 0) < count for topic, count in wanted.items()):
            if self._process.poll() is not None or time.monotonic() > until:
                raise EngineError("the injector failed", remedy="see its message above")
            time.sleep(INTERVAL)

    def between(self, topic: str, start: float, end: float) -> float:
        """The number of rows that the topic got between two times."""
        told = self.sent[:]
        first, last = np.interp([start, end], [each.time for each in told], [each.rows[topic] for each in told])
        return float(last - first)

    def stop(self) -> Mapping[str, int]:
        """End the process; return the total number of rows of each topic."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()  # which ends the process
        self._process.wait()
        self._reader.join()
        return self.sent[-1].rows if self.sent else {}

    def _order(self, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in said:
                self.sent.append(Sent(*json.loads(line)))


class _Topics:
    """Sends rows to topics, and counts the rows that the broker has confirmed."""

    def __init__(self, servers: str, topics: Mapping[str, str]) -> None:
        import confluent_kafka

        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "linger.ms": 2, "queue.buffering.max.messages": 2_000_000}
        )
        self._values = {topic: _values(maker) for topic, maker in topics.items()}
        self._partitions = {topic: len(self._producer.list_topics(topic).topics[topic].partitions) for topic in topics}
        self._begun = dict.fromkeys(topics, 0)
        self.sent = dict.fromkeys(topics, 0)
        """By topic: the number of confirmed rows."""

    def send(self, topic: str, count: int) -> None:
        values, partitions, first = self._values[topic], self._partitions[topic], self._begun[topic]
        for number in range(first, first + count):
            # Partitions in turn, so that all get the same number; Kafka's own choice stays with one for many rows.
            value = values[number % len(values)]
            self._producer.produce(topic, value, partition=number % partitions, on_delivery=self._arrived)
            if number % 1000 == 0:
                self._producer.poll(0)
        self._begun[topic] += count

    def _arrived(self, error: Any, message: Any) -> None:
        if error is not None:
            raise EngineError(
                f"a row was not taken: {error}", where=f"topic '{message.topic()}'", remedy="see the broker"
            )
        self.sent[message.topic()] += 1

    def poll(self) -> None:
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.flush(PATIENCE)


def _values(maker: str) -> list[bytes]:
    module, _, function = maker.partition(":")
    make = getattr(importlib.import_module(module), function)
    return [json.dumps(make(number)).encode() for number in range(DIFFERENT)]


def _tell(sent: Mapping[str, int]) -> None:
    sys.stdout.write(json.dumps([time.monotonic(), sent]) + "\n")
    sys.stdout.flush()


def _main() -> None:
    topics = _Topics(sys.argv[1], json.loads(sys.argv[2]))
    rates: dict[str, float] = {}
    owed: dict[str, float] = {}
    last, told = time.monotonic(), 0.0
    while True:
        while select.select([sys.stdin], [], [], 0.0)[0]:
            line = sys.stdin.readline()
            if not line:
                topics.flush()
                _tell(topics.sent)
                return
            order = json.loads(line)
            for topic, count in order.get("heap", {}).items():
                topics.send(topic, count)
            if "heap" in order:
                topics.flush()
                _tell(topics.sent)
                last = time.monotonic()
            rates = order.get("rates", rates)
        now = time.monotonic()
        for topic, rate in rates.items():
            owed[topic] = owed.get(topic, 0.0) + rate * (now - last)
            topics.send(topic, int(owed[topic]))
            owed[topic] %= 1.0
        topics.poll()
        last = now
        if now - told >= TELL:
            _tell(topics.sent)
            told = now
        time.sleep(INTERVAL)


if __name__ == "__main__":
    _main()
