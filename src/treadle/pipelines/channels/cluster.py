"""The brokers of a Kafka cluster as pipelines need them: whether they answer, their topics, and the end offsets.

One client and one thread serve all topics of a run. It reads no rows, and knows nothing of Spark.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from treadle.errors import EngineError

log = logging.getLogger("treadle.pipelines")

POLL = 0.1
"""Seconds between two polls of the end offsets of all watched topics."""
ANSWER = 5.0
"""Timeout in seconds after which a broker counts as out of reach."""
Ends = dict[int, int]
Seen = Callable[[Ends, float], None]


class Cluster:
    """The cluster at `bootstrap` (host:port, or several with commas). `close` ends its thread."""

    def __init__(self, bootstrap: str) -> None:
        try:
            from confluent_kafka.admin import AdminClient
        except ImportError:
            raise EngineError("the Kafka client is not installed", remedy="pip install 'treadle[kafka]'") from None
        self.bootstrap = bootstrap
        self.reachable = True
        self.lost = -1.0
        """When the cluster was last out of reach (monotonic); -1 if never."""
        self._connect = partial(AdminClient, client_config(bootstrap))
        self._client = self._connect()
        self._watched: dict[str, tuple[str, list[int], Seen]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._check()

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic; none if it does not exist."""
        known = self._metadata().topics.get(topic)  # lists all topics: asking for one may create it
        return [] if known is None or known.error is not None else sorted(known.partitions)

    def ensure(self, topic: str, config: Mapping[str, str]) -> list[int]:
        """The partitions of a topic; a missing topic is created with one partition."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        found = self.partitions(topic)
        if not found:
            wanted = NewTopic(topic, num_partitions=1, config=dict(config))
            try:
                self._client.create_topics([wanted], request_timeout=ANSWER)[topic].result(2.0 * ANSWER)
            except TimeoutError:
                raise EngineError(
                    "can't be made: no answer", where=f"topic '{topic}'", remedy="treadle kafka status"
                ) from None
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise EngineError(
                        f"can't be made: {error.args[0].str()}", where=f"topic '{topic}'", remedy="make it by hand"
                    ) from error
            until = time.monotonic() + ANSWER
            while not (found := self.partitions(topic)) and time.monotonic() < until:
                time.sleep(0.02)
        return found

    def ends(self, topic: str, partitions: Iterable[int], *, first: bool = False) -> Ends:
        """The end offset of each partition at this moment, or with `first` its first offset."""
        until = time.monotonic() + ANSWER
        while True:
            found, why = self._offsets({topic: list(partitions)}, first)
            if topic in found:
                return found[topic]
            # A new topic has no leader for a moment; a topic that has lost its leader has none for some seconds.
            if time.monotonic() > until:
                if not self._answers(1.0):
                    self.lost = time.monotonic()  # so that this counts as an outage before the next poll finds it
                raise EngineError(
                    f"its end offsets can't be read: {why}", where=f"topic '{topic}'", remedy="check the broker"
                )
            time.sleep(0.05)

    def delete(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete rows before these offsets, without waiting until it is done."""
        from confluent_kafka import TopicPartition

        self._client.delete_records([TopicPartition(topic, each, offset) for each, offset in before.items()])

    def watch(self, channel: str, topic: str, partitions: Iterable[int], seen: Seen) -> None:
        """Call `seen` after each poll from now on, with the topic's end offsets and the time (since 1970).

        A later call for the same `channel` replaces this one.
        """
        with self._lock:
            self._watched[channel] = (topic, list(partitions), seen)
        self.start()

    def unwatch(self, channel: str) -> None:
        """Poll the topic of a channel no more."""
        with self._lock:
            self._watched.pop(channel, None)

    def start(self) -> None:
        """Start the thread that polls the brokers, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="treadle-kafka", daemon=True)
            self._thread.start()

    def poll(self) -> bool:
        """Poll all watched topics now; false if no broker answers."""
        with self._lock:
            watched = list(self._watched.values())
        found, _ = self._offsets({topic: partitions for topic, partitions, _ in watched}, False)
        now = time.time()
        for topic, _, seen in watched:
            if topic in found:
                seen(found[topic], now)
        there = bool(found) or self._answers(1.0)
        if not there:
            self.lost = time.monotonic()
        if there != self.reachable:
            self.reachable = there
            tell = log.info if there else log.warning
            tell("Kafka at %s %s", self.bootstrap, "answers again" if there else "is out of reach")
        return there

    def failed_since(self, moment: float) -> bool:
        """Whether the cluster was out of reach at any time since `moment` (monotonic)."""
        return not self.reachable or self.lost >= moment

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _check(self) -> None:
        if not self._answers(ANSWER):
            raise EngineError(
                f"no Kafka broker answers at {self.bootstrap}",
                remedy="treadle kafka start, or name one that runs: kafka='host:port'",
            )

    def _answers(self, timeout: float) -> bool:
        from confluent_kafka import KafkaException

        try:
            return bool(self._client.list_topics(timeout=timeout).brokers)
        except KafkaException:
            return False

    def _metadata(self) -> Any:
        from confluent_kafka import KafkaException

        try:
            return self._client.list_topics(timeout=ANSWER)
        except KafkaException as error:
            raise EngineError(
                f"no Kafka broker answers at {self.bootstrap}: {error.args[0].str()}", remedy="treadle kafka status"
            ) from error

    def _offsets(self, topics: Mapping[str, list[int]], first: bool) -> tuple[dict[str, Ends], str]:
        """Return the offsets of each topic of which all partitions have a leader, and an error of the other topics."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        ask: Any = OffsetSpec
        which = ask.earliest() if first else ask.latest()
        wanted = {TopicPartition(topic, each): which for topic, parts in topics.items() for each in parts}
        if not wanted:
            return {}, ""
        found: dict[str, Ends] = {topic: {} for topic in topics}
        why = ""
        until = time.monotonic() + 2.0 * ANSWER
        for each, answer in self._client.list_offsets(wanted, request_timeout=ANSWER).items():
            try:
                found[each.topic][each.partition] = int(answer.result(max(0.0, until - time.monotonic())).offset)
            except KafkaException as error:
                why = error.args[0].str()
            except TimeoutError:  # its client was replaced meanwhile
                why = "no answer"
        return {topic: ends for topic, ends in found.items() if len(ends) == len(topics[topic])}, why

    def _watch(self) -> None:
        told = False
        while not self._closing.wait(POLL if self.reachable else 5 * POLL):
            try:
                if not self.poll():
                    # A client that got an answer without brokers, from one that was stopping, may never reconnect.
                    self._client = self._connect()
                told = False
            except Exception:
                if not told:
                    log.exception("the end offsets of topics at %s can't be read", self.bootstrap)
                told = True


def client_config(bootstrap: str) -> dict[str, Any]:
    """The configuration of librdkafka: it reconnects within a second and prints nothing; callers report errors."""
    return {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 0,
        "logger": _silent,
        "error_cb": lambda _: None,
    }


_silent = logging.getLogger("treadle.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False
