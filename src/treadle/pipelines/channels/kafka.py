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

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import EngineError
from treadle.pipelines.channels import encoded
from treadle.pipelines.channels.channel import Replan
from treadle.pipelines.channels.checkpoint import done_up_to, last_committed
from treadle.pipelines.channels.cluster import Cluster, Ends
from treadle.pipelines.channels.ledger import ArrivalStats, Ledger, Offsets, Part, least, line
from treadle.pipelines.channels.positions import replace
from treadle.pipelines.channels.readers import KEPT, LIMIT, ROWS_PER_BATCH, CheckpointOf, Readers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("treadle.pipelines")

ATTEMPTS = 5
EARLIEST = -2
"""Kafka's first offset, as an option of Spark's source."""
WORTH_DELETING = 10_000
"""Rows that all readers have read are deleted together, once there are so many."""
_WRITING = {
    "kafka.request.timeout.ms": "5000",
    "kafka.delivery.timeout.ms": "10000",
    "kafka.max.block.ms": "8000",
}


class KafkaChannel(Readers):
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
        self._deleted: dict[int, int] = cluster.ends(topic, self._partitions, first=True)
        self._folder = folder
        self._recover()
        cluster.watch(self.name, topic, self._partitions, self._seen)

    @property
    def batch(self) -> int:
        return self.ledger.batch

    def refresh(self) -> bool:
        """Return False: the ledger is in this process, so changes are known without polling."""
        return False

    def collect(self) -> int:
        """Delete the rows that all readers are done with, in the topic and in the ledger."""
        with self._lock:
            passed = least(self._safe.values()) if self._safe else {}
            self.ledger.prune(passed)
            count = sum(passed.values()) - sum(self._deleted.values())
            if count < WORTH_DELETING:
                return 0
            self._deleted = passed
        self._cluster.delete(self.topic, passed)
        return count

    def register(self, consumer: str) -> None:
        """Register a reader. One that left, and whose rows are gone, goes on with the first row of the ledger."""
        with self._lock:
            super().register(consumer)
            position, first = self.positions[consumer], self._first()
            if any(position.get(each, 0) < offset for each, offset in first.items()):
                replace(self._since(consumer), json.dumps(first))
                log.warning("'%s' goes on at %s of topic '%s': rows after %s are gone", consumer, first, self.topic,
                            position)  # fmt: skip

    def read(self, spark: SparkSession, hop: str, consumer: str) -> DataFrame:  # noqa: ARG002 - it does not ask
        from pyspark.sql import functions as f

        with self._lock:
            void = self._left_out[consumer] = self._parts.voids(self._safe.get(consumer, {}))
            first = {str(each): offset or EARLIEST for each, offset in self._first().items()}
        options = {LIMIT: str(self._batch_rows), "startingOffsets": json.dumps({self.topic: first})}
        since = json.loads(self._since(consumer).read_text()) if self._since(consumer).exists() else {}
        rows = self._source(spark, {**options, **({"failOnDataLoss": "false"} if since else {})})
        for partition, offset in since.items():  # the ledger no longer says which of the rows before are void
            rows = rows.where(f"NOT (partition = {partition} AND offset < {offset})")
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
                raise Replan(f"topic '{self.topic}' has rows of a failed attempt in batch {batch_id} of '{consumer}'")
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
            remedy="another program writes to it: end that program, or give one of the two pipelines another name",
        )

    def _first(self) -> dict[int, int]:
        """Where the ledger begins: rows before that may be deleted, and it is not known which of them are void."""
        with self._lock:
            known = self._parts.found[0].spans if self._parts.found else {}
            return {each: max(known.get(each, (0, 0))[0], self._deleted.get(each, 0)) for each in self._partitions}

    def _since(self, consumer: str) -> Path:
        """The file with the first offsets that are there for a reader which came back after its rows were gone."""
        return self._folder / f"since-{consumer}.json"

    def _ends(self) -> Ends:
        return self._cluster.ends(self.topic, self._partitions)

    def _seen(self, ends: Ends, _: float) -> None:
        """Record rows that appear while nothing is written as void: they are late rows of a failed attempt."""
        with self._lock, suppress(EngineError):  # a ledger that can't be written now is tried again at the next poll
            if not self._writing:
                self._void(ends)

    def _void(self, ends: Offsets) -> None:
        """Record as void all offsets before `ends` for which the ledger has no line."""
        with self._lock:
            known = self._parts.ends
            spans = {each: (known.get(each, 0), max(known.get(each, 0), ends[each])) for each in self._partitions}
            if any(start < end for start, end in spans.values()):
                self.ledger.record(Part(spans, void=True))

    def _recover(self) -> None:
        """Record as void all offsets after the last line of the ledger: a crashed attempt has left these rows.

        If lines of the ledger are lost, raise an error instead: these rows are of batches that Spark has committed.
        """
        ends, known = self._ends(), self._parts.ends
        readers = self._committed()
        if any(end > ends.get(each, 0) for position in (known, *readers.values()) for each, end in position.items()):
            raise EngineError(
                "has fewer rows than the ledger says, or a reader's checkpoint: it was deleted or created again",
                where=f"topic '{self.topic}'",
                remedy=f"to start from nothing, delete the pipeline's folder ({self.ledger.file.parent.parent.parent})",
            )
        done = last_committed(self._checkpoint(self.name))
        if done > self.batch and any(ends[each] > known.get(each, 0) for each in self._partitions):
            missing = f"batch {done}" if done == self.batch + 1 else f"batches {self.batch + 1} to {done}"
            what = f"Spark has committed {missing} of hop '{self.name}', which the ledger does not have"
            raise self._behind(f"{what}: so the rows of {missing} in topic '{self.topic}' are not known", ends, done)
        for name, position in readers.items():
            for each, end in position.items():
                if end > known.get(each, 0):
                    what = f"hop '{name}' has read up to offset {end} of partition {each}"
                    at = f"the ledger ends at {known.get(each, 0)}"
                    raise self._behind(f"{what}, {at}: lines of topic '{self.topic}' are missing", ends, done)
        self._void(ends)

    def _committed(self) -> dict[str, dict[int, int]]:
        """The offsets up to which each hop that reads this topic has committed its batches."""
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


def _covered(part: Part, known: Sequence[Part]) -> bool:
    """Whether a plan that leaves out the `known` parts leaves out all of `part`, which may be joined from several."""
    spans = part.spans.items()
    return all(start == end or any(_holds(other, each, start, end) for other in known) for each, (start, end) in spans)


def _holds(part: Part, partition: int, start: int, end: int) -> bool:
    first, last = part.spans.get(partition, (0, 0))
    return first <= start and end <= last
