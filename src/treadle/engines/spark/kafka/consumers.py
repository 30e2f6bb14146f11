"""The lag of each Kafka source during a batch: MBeans of Kafka consumers, matched to the tasks that poll them.

A consumer's name does not contain its query. But a task that waits for Kafka waits on the sockets of its consumer, and
the kernel counts the same bytes on these sockets as the consumer itself. If only one consumer and one task are left,
they belong together. A match holds for as long as the query runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from treadle.durations import Backoff
from treadle.engines.spark.threads import sockets
from treadle.engines.spark.threads.places import Place
from treadle.engines.spark.threads.sockets import Traffic
from treadle.jvm.mbeans import Beans
from treadle.model import ThreadRef

_FETCHES = "kafka.consumer:type=consumer-fetch-manager-metrics,client-id=*"
REQUESTS = (
    ("kafka.producer:type=producer-metrics,client-id=*", ("record-send-total",)),
    (f"{_FETCHES},topic=*", ("records-consumed-total",)),
    (f"{_FETCHES},topic=*,partition=*", ("records-lag",)),
    ("kafka.consumer:type=consumer-metrics,client-id=*", ("incoming-byte-total", "outgoing-byte-total")),
)
"""The MBeans that are read in each JVM, in one request and in this order.

A busy JVM answers slowly, and records move on while it answers. So sent records are read before consumed ones, and the
lag last: no record is counted twice, and none as sent that is not yet counted as consumed.
"""
BACKOFF = Backoff(0.25, 4.0)
"""Pauses in seconds between two attempts to match the same consumers to the same tasks."""
OURS = "consumer-spark-kafka-source-"
EXACT = 0.005
"""Maximum relative difference of two counts of the same bytes, since they are read one after the other."""


class Consumer(NamedTuple):
    """A Kafka consumer of a task."""

    lag: float
    """Records that wait in Kafka, over all partitions of the consumer; NaN while unknown."""
    consumed: float
    """Records taken since the consumer was created."""
    traffic: Traffic


Key = tuple[int, str]
"""The process and the client id of a consumer or producer."""


def consumers(pid: int, answer: list[Beans]) -> dict[Key, Consumer]:
    """The consumers of Spark's sources in a JVM, from its answer to `REQUESTS`."""
    _, counts, lags, bytes_ = answer
    found: dict[Key, Consumer] = {}
    for name, values in bytes_.items():
        client = _client(name)
        if client.startswith(OURS):
            traffic = Traffic(_count(values, "outgoing-byte-total"), _count(values, "incoming-byte-total"))
            found[pid, client] = Consumer(
                _sum(lags, client, "records-lag"), _sum(counts, client, "records-consumed-total"), traffic
            )
    return found


def sent(pid: int, answer: list[Beans]) -> dict[Key, float]:
    """Return the records that each Kafka producer of a JVM has sent so far, from the JVM's answer to `REQUESTS`."""
    counts = {(pid, _client(name)): _number(values, "record-send-total") for name, values in answer[0].items()}
    return {key: count for key, count in counts.items() if not math.isnan(count)}


def grown(counts: Mapping[Key, float], before: Mapping[Key, float]) -> float:
    """Sum up the growth of all counts. An ended client subtracts nothing; a new client started at zero."""
    return sum(max(0.0, count - before.get(key, 0.0)) for key, count in counts.items())


class Matches:
    """The task of each Kafka consumer."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._places: dict[Key, Place] = {}
        self._now = now
        self._tried: object = None
        self._tries, self._again = 0, -math.inf

    @property
    def places(self) -> Mapping[Key, Place]:
        return self._places

    def match(self, found: Mapping[Key, Consumer], sources: Mapping[Place, ThreadRef]) -> None:
        """Match new consumers; `sources` are the tasks that read from Kafka, with their threads."""
        runs = {place.run for place in sources}
        kept = {key: place for key, place in self._places.items() if key in found and place.run in runs}
        free = {key: consumer for key, consumer in found.items() if key not in kept}
        taken = set(kept.values())
        tasks = {place: ref for place, ref in sources.items() if place not in taken}
        if free and tasks and self._may_try((free.keys(), tasks.keys())):
            kept.update(_by_traffic(free, tasks) or _left_over(free, tasks))
        self._places = kept

    def _may_try(self, what: object) -> bool:
        """Limit the attempts: listing all sockets is expensive, so failed matches are retried after growing pauses."""
        if what != self._tried:
            self._tried, self._tries, self._again = what, 0, -math.inf
        now = self._now()
        if now < self._again:
            return False
        self._tries += 1
        self._again = now + BACKOFF.pause(self._tries)
        return True


def _by_traffic(free: Mapping[Key, Consumer], tasks: Mapping[Place, ThreadRef]) -> dict[Key, Place]:
    """Match a task to the consumer that has exchanged the same bytes, unless a second one is nearly as close."""
    known = sockets.by_inode()
    found: dict[Key, Place] = {}
    for place, ref in tasks.items():
        seen = sockets.traffic(ref.pid, ref.tid, known)
        if seen is None:
            continue
        ranked = sorted(
            (_difference(consumer.traffic, seen), key) for key, consumer in free.items() if key[0] == ref.pid
        )
        if ranked and ranked[0][0] < EXACT and (len(ranked) == 1 or ranked[1][0] > 2 * ranked[0][0] + 1e-6):
            found[ranked[0][1]] = place
    return found


def _left_over(free: Mapping[Key, Consumer], tasks: Mapping[Place, ThreadRef]) -> dict[Key, Place]:
    if len(free) == 1 and len(tasks) == 1:
        return dict(zip(free, tasks, strict=True))
    return {}


def _difference(one: Traffic, other: Traffic) -> float:
    total = one.sent + one.received + other.sent + other.received
    return 2.0 * (abs(one.sent - other.sent) + abs(one.received - other.received)) / total if total else math.inf


def _sum(beans: Beans, client: str, attribute: str) -> float:
    """Sum up over all topics and partitions of a client; NaN while none is known."""
    values = [_number(values, attribute) for name, values in beans.items() if _client(name) == client]
    known = [value for value in values if not math.isnan(value)]
    return sum(known) if known else math.nan


def _client(name: str) -> str:
    return name.partition("client-id=")[2].partition(",")[0]


def _number(values: Mapping[str, object], attribute: str) -> float:
    value = values.get(attribute)
    return float(value) if isinstance(value, int | float) else math.nan


def _count(values: Mapping[str, object], attribute: str) -> int:
    """Return a count; 0 while unknown, which matches the bytes of no task."""
    number = _number(values, attribute)
    return int(number) if math.isfinite(number) else 0
