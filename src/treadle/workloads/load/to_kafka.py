"""Sends rows to a Kafka topic as JSON objects, by the client's `produce_batch`, each exactly once and in order.

Lines are encoded once, before the first row is due. The producer is idempotent and never gives a row up, so while no
broker answers, rows wait in its queue, and later in the schedule.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import numpy as np

from treadle.errors import EngineError
from treadle.pipelines.channels import encoded
from treadle.pipelines.channels.cluster import ANSWER, Cluster, client_config
from treadle.workloads.load import makers
from treadle.workloads.load.rates import SECOND, Whole
from treadle.workloads.load.targets import Topic

QUEUE_ROWS = 1_000_000
QUEUE_BYTES = 256 << 20
"""Limits of the producer's queue, which are kept here, since it does not keep the order when it is full."""
_CLIENT: dict[str, Any] = {
    "enable.idempotence": True,
    "message.timeout.ms": 0,  # never
    "delivery.report.only.error": True,
    "linger.ms": 2,
    "batch.num.messages": 100_000,
    "statistics.interval.ms": 200,
    "queue.buffering.max.messages": 0,  # no limit
    "queue.buffering.max.kbytes": 2_147_483_647,
}


class TopicSink:
    """The producer of a topic. A row counts as sent when the broker has confirmed it.

    Confirmed rows are counted, not identified: with several partitions the count is as if all were equally fast. They
    are counted once in an interval, so a lag may be too large by one interval.
    """

    def __init__(self, target: Topic) -> None:
        self._topic = target.topic
        self._where = f"topic '{target.topic}' at {target.servers}"
        self._id = target.first
        self.interval = round(target.interval * SECOND)
        self._tails = _tails(target)
        self._limit = min(QUEUE_ROWS, QUEUE_BYTES * len(self._tails) // sum(map(len, self._tails)))
        self._second = -1
        self._begin = b""
        """What stands between the id and the fraction of `_second`."""
        self._partitions = self._count_partitions(target.servers)  # also checks that there is a client, and a broker
        self._refusal = ""
        self._ready = False
        self._producer = self._open(target.servers)
        self._wait_until_ready()
        self._given = 0
        self.sent = 0

    @property
    def room(self) -> int:
        """How many more rows the queue can take."""
        return max(0, self._limit - (self._given - self.sent))

    def send(self, first: int, created: Whole) -> None:
        numbered = enumerate(created.tolist(), first)
        messages: list[dict[str, Any]] = [{"value": self._value(number, micros)} for number, micros in numbered]
        # Partitions in turn, so that all get the same number; the client ignores a partition that a message names.
        for partition in range(self._partitions):
            part = messages[(partition - first) % self._partitions :: self._partitions]
            taken = self._producer.produce_batch(self._topic, part, partition=partition, on_delivery=self._on_delivery)
            self._given += taken
            if taken < len(part):
                raise self._refused(next(each["_error"].str() for each in part if "_error" in each))

    def poll(self) -> None:
        """Count the confirmed rows."""
        self._producer.poll(0)
        if self._refusal:
            raise self._refused(self._refusal)
        # The client also counts its unread reports, so `sent` could be too small for a moment, but never too large.
        self.sent = max(self.sent, self._given - len(self._producer))

    def close(self) -> None:
        """Give up what is not confirmed."""
        self._producer.purge()

    def _value(self, number: int, created: int) -> bytes:
        second, micros = divmod(created, SECOND)
        if second != self._second:
            self._second = second
            self._begin = time.strftime(',"created":"%Y-%m-%dT%H:%M:%S.', time.gmtime(second)).encode()
        tail = self._tails[number % len(self._tails)]
        return b'{"id":%d%b%06dZ",%b' % (self._id + number, self._begin, micros, tail)

    def _open(self, servers: str) -> Any:
        from confluent_kafka import Producer

        callbacks = {"error_cb": self._on_error, "stats_cb": self._on_statistics}
        producer = Producer({**client_config(servers), **_CLIENT, **callbacks})
        if not hasattr(producer, "produce_batch"):
            raise EngineError("the Kafka client has no `produce_batch`", remedy="pip install -U confluent-kafka")
        return producer

    def _count_partitions(self, servers: str) -> int:
        cluster = Cluster(servers)
        partitions = cluster.partitions(self._topic)
        cluster.close()
        if not partitions:
            raise EngineError("there is no such topic", where=self._where, remedy="create it first")
        return len(partitions)

    def _wait_until_ready(self) -> None:
        """Wait until the producer is connected and has its id, so that the first rows are not late."""
        from confluent_kafka import KafkaException

        until = time.monotonic() + ANSWER
        while not self._ready:
            if time.monotonic() > until:
                raise EngineError("the broker admits no producer", where=self._where, remedy="treadle kafka status")
            with suppress(KafkaException):
                self._producer.list_topics(self._topic, timeout=ANSWER)
            self._producer.poll(0.05)

    def _on_statistics(self, text: str) -> None:
        if not self._ready:
            self._ready = json.loads(text)["eos"]["idemp_state"] == "Assigned"

    def _on_delivery(self, error: Any, _: Any) -> None:
        if error is not None:
            self._refusal = error.str()

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._refusal = error.str()

    def _refused(self, why: str) -> EngineError:
        return EngineError(f"a row was refused: {why}", where=self._where, remedy="see the settings of the topic")


def _tails(target: Topic) -> list[bytes]:
    """The JSON objects without their first character, so that members can be put in front of them."""
    if target.lines:
        lines = makers.lines(target.lines, target.count, target.seed)
        return [json.dumps({"line": line})[1:].encode() for line in lines]
    random = np.random.default_rng(target.seed)
    return [value[1:] for value in encoded.values(makers.table(target.table, 0, target.count, random))]
