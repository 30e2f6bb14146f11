"""Kafka topics as channels: between hops, exactly once; and topics that others fill, as sources.

A topic between hops has one writer, a ledger, and readers that look at nothing the ledger has not decided. Batch b is
written as plain rows; when the topic has grown by exactly as many rows as Spark has written, the ledger gets the line
"these offsets are batch b". Offsets before such a line that no line claims get one that says "void".

Why nothing is lost or doubled, wherever the process is killed. (1) The ledger's lines follow each other without gaps
and are never changed, so each offset is decided once: a batch's, or void. (2) A batch has at most one line: one whose
number is not above the last is not written again. It has at least one: Spark repeats a batch until it is done, and it
is done after its line is there. (3) Readers wait until all offsets of their batch are decided and leave out the void
ones. Their offsets are in Spark's checkpoint before they begin, so a repeated batch has the same rows. (4) Rows that
come late, of a task that was thought dead or was repeated, make the topic grow by more than was written: this attempt
is void as a whole, and made anew. So each row is read once by every reader that commits by batch number.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import EngineError
from treadle.pipelines.channels import encoded
from treadle.pipelines.channels.channel import Replan
from treadle.pipelines.channels.checkpoint import done_up_to, last_committed, planned
from treadle.pipelines.channels.cluster import Cluster, Ends
from treadle.pipelines.channels.ledger import ArrivalStats, Ledger, Offsets, Part, Parts, least, line
from treadle.pipelines.channels.view import Backlog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CheckpointOf = Callable[[str], Path]
"""From a reader's name to the folder of its Spark checkpoint."""

ROWS_PER_BATCH = 20_000
"""In each batch at most, where no size is decided; where one is, the first batch has fewer."""
FIRST_ROWS = 1000
ATTEMPTS = 5
WORTH_DELETING = 10_000
"""So many rows that all have read stay in a topic before they are deleted together."""
KEPT = {"retention.ms": "-1"}
"""What no reader has read yet is kept, however long that takes; the rest is deleted by `collect`."""
_READING = {
    "startingOffsets": "earliest",
    "kafka.fetch.max.wait.ms": "5",
    # A broker that is gone is noticed in seconds: then the hop ends, and starts again when the broker is back.
    "kafka.request.timeout.ms": "5000",
    "kafka.default.api.timeout.ms": "8000",
    "kafkaConsumer.pollTimeoutMs": "8000",
    "fetchOffset.numRetries": "1",
}
_LIMIT, _LEAST = "maxOffsetsPerTrigger", ("minOffsetsPerTrigger", "maxTriggerDelay")
"""Options of Spark's Kafka source by which the owner of a topic says how many rows a batch has."""
_WRITING = {
    "kafka.request.timeout.ms": "5000",
    "kafka.delivery.timeout.ms": "10000",
    "kafka.max.block.ms": "8000",
}


class _Readers:
    """How far each reader of a topic is, by the offsets that Spark has written down for its batches."""

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

    def forget_others(self) -> None:
        """Nobody else is kept in mind."""

    def backlog(self, consumer: str) -> Backlog:
        with self._lock:
            position = self.positions[consumer]
            known = self._known.get(consumer)
            if known is None or known[0] != self._parts.version or known[1] is not position:
                known = (self._parts.version, position, self._parts.backlog(position))
                self._known[consumer] = known
            return known[2]

    def finish(self, consumer: str) -> None:
        with self._lock:
            self.positions[consumer] = self._reading.pop(consumer)

    def limited(self, rows: int) -> int | None:
        """How many rows a batch may have where so many would be best; None where its owner has decided that."""
        return rows

    def _first(self) -> dict[int, int]:
        return dict.fromkeys(self._partitions, 0)

    def _span(self, consumer: str, batch_id: int) -> tuple[dict[int, int], dict[int, int]]:
        """The offsets of a batch. That Spark has begun it says that it is done with the one before."""
        start = planned(self._checkpoint(consumer), batch_id - 1, self.topic) or self._first()
        end = planned(self._checkpoint(consumer), batch_id, self.topic)
        if end is None:
            where = str(self._checkpoint(consumer))
            raise EngineError(f"has no offsets of batch {batch_id}", where=where, remedy="is the checkpoint complete?")
        self._safe[consumer] = start
        self._reading[consumer] = end
        return start, end

    def _source(self, spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
        every = {"kafka.bootstrap.servers": self._cluster.bootstrap, "subscribe": self.topic, **_READING, **options}
        return spark.readStream.format("kafka").options(**every).load()


class KafkaChannel(_Readers):
    """A topic between hops. Its ledger is in `folder`."""

    def __init__(
        self,
        folder: Path,
        topic: str,
        schema: Any,
        *,
        cluster: Cluster,
        limit_rows: int,
        checkpoint: CheckpointOf,
        batch_rows: int = ROWS_PER_BATCH,
    ) -> None:
        super().__init__(folder.name, topic, encoded.checked(schema, folder.name), cluster, limit_rows, checkpoint)
        self._partitions = cluster.ensure(topic, KEPT)
        self._batch_rows = batch_rows
        self.ledger = Ledger(folder / "ledger")
        self._parts = self.ledger.parts
        self._writing = False
        self._left_out: dict[str, list[Part]] = {}
        self._deleted: dict[int, int] = {}
        self._recover()
        cluster.watch(self.name, topic, self._partitions, self._seen)

    @property
    def batch(self) -> int:
        return self.ledger.batch

    def refresh(self) -> bool:
        """What is decided is known without asking."""
        return False

    def collect(self) -> int:
        """Delete what all readers are done with, in the topic and in the ledger."""
        with self._lock:
            passed = least(self._safe.values()) if self._safe else {}
            self.ledger.prune(passed)
            count = sum(passed.values()) - sum(self._deleted.values())
            if count < WORTH_DELETING:
                return 0
            self._deleted = passed
        self._cluster.delete(self.topic, passed)
        return count

    def read(self, spark: SparkSession, hop: str, consumer: str) -> DataFrame:  # noqa: ARG002 - it does not ask
        from pyspark.sql import functions as f

        with self._lock:
            void = self._left_out[consumer] = self._parts.voids(self._safe.get(consumer, {}))
        rows = self._source(spark, {_LIMIT: str(self._batch_rows)})
        for part in void:
            for partition, (start, end) in part.spans.items():
                if start < end:
                    rows = rows.where(f"NOT (partition = {partition} AND offset >= {start} AND offset < {end})")
        return encoded.decoded(rows.select(f.col("value")), self.schema)

    def begin(self, consumer: str, batch_id: int) -> Sequence[ArrivalStats] | None:
        with self._lock:
            start, end = self._span(consumer, batch_id)
            if any(end[each] > self._parts.ends.get(each, 0) for each in end):
                return None
            mine = [part for part in self._parts.voids(start) if part.within(start, end)]
            known = self._left_out[consumer]
            if any(not _covered(part, known) for part in mine):
                raise Replan(f"topic '{self.topic}' has void rows in batch {batch_id} of '{consumer}'")
            return self._parts.ages(start, end)

    def append(self, rows: DataFrame, batch_id: int, born: Mapping[str, str]) -> int:
        if batch_id <= self.ledger.batch:
            return 0
        with self._lock:
            self._writing = True
        try:
            for _ in range(ATTEMPTS):
                start = self._ends()
                self._void(start)
                written = encoded.write(rows, born, self._cluster.bootstrap, self.topic, _WRITING)
                end = self._ends()
                if sum(end.values()) - sum(start.values()) == written.rows:
                    spans = {each: (start[each], end[each]) for each in self._partitions}
                    part = Part(spans, written.oldest, written.mean, written.bytes, batch_id)
                    with self._lock:
                        self.ledger.record(part)  # also without rows: so each committed batch has a line
                    return written.rows
                self._void(end)
        finally:
            with self._lock:
                self._writing = False
        raise EngineError(
            f"has grown by more than was written, {ATTEMPTS} times",
            where=f"topic '{self.topic}'",
            remedy="somebody else writes to it: end that, or give one of the two pipelines another name",
        )

    def _ends(self) -> Ends:
        return self._cluster.ends(self.topic, self._partitions)

    def _seen(self, ends: Ends, _: float) -> None:
        """Rows that come while nobody writes are late ones of an attempt that has failed."""
        with self._lock, suppress(EngineError):  # a ledger that can't be written now is tried again at the next poll
            if not self._writing:
                self._void(ends)

    def _void(self, ends: Offsets) -> None:
        """All that is not decided up to there is nobody's."""
        with self._lock:
            known = self._parts.ends
            spans = {each: (known.get(each, 0), max(known.get(each, 0), ends[each])) for each in self._partitions}
            if any(start < end for start, end in spans.values()):
                self.ledger.record(Part(spans, void=True))

    def _recover(self) -> None:
        """What lies behind the last line of the ledger was left by an attempt that a crash has ended.

        Unless lines of the ledger are lost. Then nothing may be decided: Spark has committed what they said.
        """
        ends, known = self._ends(), self._parts.ends
        readers = self._committed()
        if any(end > ends.get(each, 0) for position in (known, *readers.values()) for each, end in position.items()):
            raise EngineError(
                "has fewer rows than the ledger says, or a reader's checkpoint: it was deleted or made anew",
                where=f"topic '{self.topic}'",
                remedy=f"to start from nothing, delete the pipeline's folder ({self.ledger.file.parent.parent.parent})",
            )
        done = last_committed(self._checkpoint(self.name))
        if done > self.batch and any(ends[each] > known.get(each, 0) for each in self._partitions):
            missing = f"batch {done}" if done == self.batch + 1 else f"batches {self.batch + 1} to {done}"
            what = f"Spark has committed {missing} of hop '{self.name}', which the ledger does not have"
            raise self._behind(f"{what}: which rows of topic '{self.topic}' are theirs is not known", ends, done)
        for name, position in readers.items():
            for each, end in position.items():
                if end > known.get(each, 0):
                    what = f"hop '{name}' has read up to offset {end} of partition {each}"
                    at = f"the ledger ends at {known.get(each, 0)}"
                    raise self._behind(f"{what}, {at}: lines of topic '{self.topic}' are missing", ends, done)
        self._void(ends)

    def _committed(self) -> dict[str, dict[int, int]]:
        """How far each hop that reads this topic has come, by what Spark has committed."""
        folder = self._checkpoint(self.name).parent
        found = {each.name: done_up_to(each, self.topic) for each in folder.iterdir()} if folder.is_dir() else {}
        return {name: position for name, position in found.items() if position is not None}

    def _behind(self, what: str, ends: Offsets, done: int) -> EngineError:
        spans = {each: (self._parts.ends.get(each, 0), ends[each]) for each in self._partitions}
        forgotten = line(Part(spans, batch=max(done, self.batch), void=True)).decode().strip()
        return EngineError(
            what,
            where=str(self.ledger.file),
            remedy="put the ledger back from a copy, or delete the pipeline's folder to start from nothing; "
            f"to go on without the rows of the missing batches, add the line {forgotten}",
        )


class Topic(_Readers):
    """A topic that others fill. `options` are those of Spark's Kafka source.

    A batch has at most `batch_rows`, or, in real time, all that come (None).
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
        self.options = {**({} if batch_rows is None else {_LIMIT: str(batch_rows)}), **self._own_options}
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
        return min(rows, int(self._own_options.get(_LIMIT, rows)))

    def refresh(self) -> bool:
        before = self._parts.version
        if self._cluster.reachable:
            self._cluster.poll()
        return self._parts.version != before

    def collect(self) -> int:
        """The rows are not ours to delete; what is known of those that all have read, is."""
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
        """Around what is written here and told by `wrote`: a look in between would take these rows for others'."""
        with self._lock:
            self._writers += 1
        try:
            yield
        finally:
            with self._lock:
                self._writers -= 1

    def wrote(self, ends: Offsets, oldest: int, mean: int) -> None:
        """Up to there are rows now, that arrived then (microseconds)."""
        with self._lock:
            known = self._parts.ends
            spans = {each: (known.get(each, 0), max(known.get(each, 0), ends[each])) for each in ends}
            if any(start < end for start, end in spans.values()):
                self._parts.add(Part(spans, oldest, mean))

    def _seen(self, ends: Ends, now: float) -> None:
        """What is new has come since the last look."""
        with self._lock:
            if self._writers:
                return
            before, self._latest = self._latest, max(now, self._latest)
            self.wrote(ends, int(before * 1e6), int((before + self._latest) / 2 * 1e6))

    def _first(self) -> dict[int, int]:
        return dict(self._start)


def _covered(part: Part, known: Sequence[Part]) -> bool:
    """Whether these leave out all of the part. Parts may have been joined since."""
    spans = part.spans.items()
    return all(start == end or any(_holds(other, each, start, end) for other in known) for each, (start, end) in spans)


def _holds(part: Part, partition: int, start: int, end: int) -> bool:
    first, last = part.spans.get(partition, (0, 0))
    return first <= start and end <= last
