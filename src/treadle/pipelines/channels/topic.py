"""A Kafka topic that no hop fills, as a source of a pipeline: other applications write it, or a feed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from treadle.errors import EngineError
from treadle.pipelines.channels import encoded
from treadle.pipelines.channels.cluster import Cluster, Ends
from treadle.pipelines.channels.ledger import ArrivalStats, Offsets, Part, least

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

from treadle.pipelines.channels.readers import KEPT, LIMIT, ROWS_PER_BATCH, CheckpointOf, Readers

FIRST_ROWS = 1000
_LEAST = ("minOffsetsPerTrigger", "maxTriggerDelay")
"""Options of Spark's Kafka source by which a user sets the least number of rows in a batch, and the wait for them."""


class Topic(Readers):
    """A topic that no hop fills. `options` are options of Spark's Kafka source; with `make` a missing topic is created.

    A batch has at most `batch_rows`; None, for real-time mode, means all rows that arrive.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        schema: Any,
        *,
        cluster: Cluster,
        limit_rows: int,
        checkpoint: CheckpointOf,
        options: Mapping[str, str] | None = None,
        make: bool = False,
        batch_rows: int | None = ROWS_PER_BATCH,
    ) -> None:
        super().__init__(name, topic, schema, cluster, limit_rows, checkpoint)
        self._own_options = dict(options or {})
        self.options = {**({} if batch_rows is None else {LIMIT: str(batch_rows)}), **self._own_options}
        self._partitions = cluster.ensure(topic, KEPT) if make else cluster.partitions(topic)
        if not self._partitions:
            raise EngineError(
                "does not exist", where=f"topic '{topic}'", remedy="make it, or start what writes to it first"
            )
        self._latest = time.time()
        self._writers = 0
        now = int(self._latest * 1e6)
        begin, end = (cluster.ends(topic, self._partitions, first=first) for first in (True, False))
        self._start = end if self.options.get("startingOffsets") == "latest" else begin
        self._parts.ends = dict(begin)
        self.wrote(end, now, now)
        cluster.watch(self.name, topic, self._partitions, self._seen)

    def limited(self, rows: int) -> int | None:
        if any(option in self._own_options for option in _LEAST):
            return None
        return min(rows, int(self._own_options.get(LIMIT, rows)))

    def refresh(self) -> bool:
        before = self._parts.version
        if self._cluster.reachable:
            self._cluster.poll()
        return self._parts.version != before

    def collect(self) -> int:
        """Forget the arrival times of rows that all readers have read. The rows stay in the topic."""
        with self._lock:
            self._parts.forget(least(self.positions.values()) if self.positions else {})
        return 0

    def read(self, spark: SparkSession, hop: str, consumer: str) -> DataFrame:  # noqa: ARG002 - it does not ask
        rows = self._source(spark, self.options)
        return rows if self.schema is None else encoded.good(rows, self.schema, self.name)

    def begin(self, consumer: str, batch_id: int) -> Sequence[ArrivalStats] | None:
        with self._lock:
            start, end = self._span(consumer, batch_id)
            self._seen(end, time.time())
            return self._parts.ages(start, end)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Context for writes of this process, which `wrote` reports at the end. Polls in between record no rows."""
        with self._lock:
            self._writers += 1
        try:
            yield
        finally:
            with self._lock:
                self._writers -= 1

    def wrote(self, ends: Offsets, oldest: int, mean: int) -> None:
        """Record the new rows before the offsets `ends`, with `oldest` and `mean` arrival time in microseconds."""
        with self._lock:
            known = self._parts.ends
            spans = {each: (known.get(each, 0), max(known.get(each, 0), ends[each])) for each in ends}
            if any(start < end for start, end in spans.values()):
                self._parts.add(Part(spans, oldest, mean))

    def _seen(self, ends: Ends, now: float) -> None:
        """Record new rows that a poll has found, as arrived evenly since the last poll."""
        with self._lock:
            if self._writers:
                return
            before, self._latest = self._latest, max(now, self._latest)
            self.wrote(ends, int(before * 1e6), int((before + self._latest) / 2 * 1e6))

    def _first(self) -> dict[int, int]:
        return dict(self._start)
