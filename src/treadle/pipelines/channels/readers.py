"""Positions and backlogs of the hops that read a Kafka topic, which Treadle or others write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import EngineError
from treadle.pipelines.channels.checkpoint import done_up_to, planned
from treadle.pipelines.channels.cluster import Cluster, Ends
from treadle.pipelines.channels.ledger import Parts
from treadle.pipelines.channels.view import Backlog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CheckpointOf = Callable[[str], Path]
"""From a reader's name to the folder of its Spark checkpoint."""

ROWS_PER_BATCH = 20_000
"""Most rows in a batch whose size the gate does not decide. Where the gate decides, the first batch has fewer rows."""
LIMIT = "maxOffsetsPerTrigger"
"""The option of Spark's Kafka source that says how many rows a batch has at most."""
KEPT = {"retention.ms": "-1"}
"""Settings of a new topic: rows are kept without a time limit. `KafkaChannel.collect` deletes those that were read."""
_READING = {
    "startingOffsets": "earliest",
    "kafka.fetch.max.wait.ms": "5",
    # A broker that is gone is noticed in seconds: then the hop ends, and starts again when the broker is back.
    "kafka.request.timeout.ms": "5000",
    "kafka.default.api.timeout.ms": "8000",
    "kafkaConsumer.pollTimeoutMs": "8000",
    "fetchOffset.numRetries": "1",
}


class Readers:
    """The position and backlog of each reader of a topic, from the offsets in Spark's checkpoints."""

    asks = False

    def __init__(
        self, name: str, topic: str, schema: Any, cluster: Cluster, limit_rows: int, checkpoint: CheckpointOf
    ) -> None:
        self.name = name
        self.topic = topic
        self.schema = schema
        self.limit_rows = limit_rows
        self.positions: dict[str, dict[int, int]] = {}
        self._cluster = cluster
        self._checkpoint = checkpoint
        self._partitions: list[int] = []
        self._parts = Parts()
        self._lock = threading.RLock()
        self._reading: dict[str, dict[int, int]] = {}
        self._safe: dict[str, dict[int, int]] = {}
        self._known: dict[str, tuple[int, dict[int, int], Backlog]] = {}

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    @property
    def rows(self) -> int:
        return max((self.backlog(consumer).rows for consumer in list(self.positions)), default=0)

    @property
    def total(self) -> int:
        with self._lock:
            return sum(self._parts.ends.values())

    @property
    def full(self) -> bool:
        return self.rows >= self.limit_rows

    def register(self, consumer: str) -> None:
        position = done_up_to(self._checkpoint(consumer), self.topic)
        self.positions[consumer] = self._first() if position is None else position
        self._safe[consumer] = self.positions[consumer]

    def leave(self, consumer: str) -> None:
        """Keep no more rows for a consumer. If it registers again, it goes on where its checkpoint is."""
        with self._lock:
            for known in (self.positions, self._safe, self._reading, self._known):
                known.pop(consumer, None)

    def end(self) -> Ends:
        """The end offset of each partition."""
        with self._lock:
            return dict(self._parts.ends)

    def has_read(self, consumer: str, end: Ends) -> bool:
        """Whether a consumer is done with all rows before the offsets `end`."""
        with self._lock:
            position = self.positions.get(consumer)
            return position is None or all(position.get(each, 0) >= offset for each, offset in end.items())

    def forget_others(self) -> None:
        """Do nothing: readers that are not registered are unknown here."""

    def backlog(self, consumer: str) -> Backlog:
        with self._lock:
            position = self.positions.get(consumer, self._parts.ends)
            known = self._known.get(consumer)
            if known is None or known[0] != self._parts.version or known[1] is not position:
                known = (self._parts.version, position, self._parts.backlog(position))
                self._known[consumer] = known
            return known[2]

    def finish(self, consumer: str) -> None:
        with self._lock:
            if consumer in self.positions:  # it may have left
                self.positions[consumer] = self._reading.pop(consumer)

    def limited(self, rows: int) -> int | None:
        """How many rows of this topic a batch may have if `rows` would be best; None if a user has set a least size."""
        return rows

    def _first(self) -> dict[int, int]:
        return dict.fromkeys(self._partitions, 0)

    def _span(self, consumer: str, batch_id: int) -> tuple[dict[int, int], dict[int, int]]:
        """Return the start and end offsets of a batch that Spark has begun. So rows before the start were processed."""
        start = planned(self._checkpoint(consumer), batch_id - 1, self.topic) or self._first()
        end = planned(self._checkpoint(consumer), batch_id, self.topic)
        if end is None:
            where = str(self._checkpoint(consumer))
            raise EngineError(
                f"has no offsets of batch {batch_id}", where=where, remedy="put the checkpoint back from a copy"
            )
        self._safe[consumer] = start
        self._reading[consumer] = end
        return start, end

    def _source(self, spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
        every = {"kafka.bootstrap.servers": self._cluster.bootstrap, "subscribe": self.topic, **_READING, **options}
        return spark.readStream.format("kafka").options(**every).load()
