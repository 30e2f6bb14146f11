"""The gate inside `foreachBatch`, for hops that can't be held back in their source, as with Kafka or files.

Spark calls the function of `foreachBatch` when it has planned a batch. In it the batch waits for a slot, runs and is
counted. Hops that wait in their source, before a batch is planned, are handled by `parked_hops`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any

from treadle.enforce.gate.gate import Gate
from treadle.pipelines.channels import encoded
from treadle.pipelines.channels.channel import Replan
from treadle.pipelines.channels.kafka import KafkaChannel
from treadle.pipelines.channels.ledger import ArrivalStats
from treadle.pipelines.channels.topic import Topic
from treadle.pipelines.gating.parked_hops import ParkedHops
from treadle.pipelines.hops import build, source_metrics
from treadle.pipelines.hops.hop import Hop, State
from treadle.pipelines.nodes.node import Node
from treadle.pipelines.spark.queries import Stopped, interruptible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("treadle.pipelines")

LOOK = 0.01
"""Seconds between two checks whether a batch may begin."""
LONGEST_LOOK = 0.2
GATHER = 2.0
"""Longest time in seconds from the start of one batch to the next while rows are dropped: fewer batches save CPU."""
STOPPING = 60.0


@dataclass(frozen=True)
class ForeachBatchGate:
    """Makes the functions for `foreachBatch`. `short` returns whether rows are shed because the CPU is too slow.

    While rows are shed, batches are delayed to have more rows: Spark would begin the next one at once, for few rows.
    """

    parked_hops: ParkedHops
    short: Callable[[], bool]
    limit: Callable[[Any, str, int], None]
    """`ReadLimits.set` in the JVM: sets how many rows of a topic the next batch of a query reads."""

    @property
    def gate(self) -> Gate:
        return self.parked_hops.gate

    @property
    def stopping(self) -> Event:
        return self.parked_hops.stopping

    def batches(self, hop: Hop, node: Node) -> Callable[[DataFrame, int], None]:
        """Return a function for `foreachBatch` that waits for a slot and runs the batch."""
        work = None if hop.output is not None else build.sink(node)
        looked = time.time()

        def batch(rows: DataFrame, batch_id: int) -> None:
            nonlocal looked
            before, looked = looked, time.time()
            hop.planned = time.monotonic()
            ages = self._wait(hop, batch_id)
            with self.gate.turn_if_there(hop.id) as granted:
                ran = granted and not self.stopping.is_set() and not hop.leaving
                if ran:
                    self._enter_pool(hop, rows)
                    hop.state = State.RUNNING
                    begun = time.monotonic()
                    written = None
                    if hop.output is not None:
                        with interruptible():
                            written = hop.output.append(rows, batch_id, _born(node, ages, before, looked))
                    elif work is not None:
                        work(rows, batch_id)
                        ages += _seen(hop, before, looked)
                    _look_for_bad_rows(hop)
                    had = hop.tuples_in
                    hop.record_foreach_batch(ages, written, time.monotonic() - begun)
                    hop.planned = None
                    hop.state = State.IDLE
            if not ran:
                self._leave(hop)
            self.parked_hops.observe(hop, hop.tuples_in - had, time.monotonic() - begun)
            self._size_next(hop)
            self.parked_hops.consider_all()
            if self.short():
                self._gather(hop, begun)

        return batch

    def _size_next(self, hop: Hop) -> None:
        """Set how many rows of each Kafka topic the next batch reads, before Spark plans that batch."""
        if not self.parked_hops.sized:
            return
        topics, backlogs = _backlogs(hop)
        most, waiting = self.parked_hops.sizer.rows(hop.id), sum(backlogs)
        for channel, rows in zip(topics, backlogs, strict=True):
            share = max(1, round(most * rows / waiting)) if most < waiting else most
            if (limit := channel.limited(share)) is not None:
                self.limit(_query(hop)._jsq, channel.topic, limit)

    def _wait(self, hop: Hop, batch_id: int) -> list[ArrivalStats]:
        """Wait until the batch's inputs can be read and its output has room; return its rows' arrival times."""
        found: list[ArrivalStats] = []
        for channel in hop.inputs:
            while (part := self._begin(hop, batch_id, channel.begin)) is None:
                self._pause(hop)
            found += part
        while hop.blocked:
            hop.state = State.BLOCKED
            self._pause(hop)
        if self.stopping.is_set():
            self._leave(hop)
        hop.state = State.WAITING
        return found

    def _begin(
        self, hop: Hop, batch_id: int, begin: Callable[[str, int], Sequence[ArrivalStats] | None]
    ) -> Sequence[ArrivalStats] | None:
        try:
            return begin(hop.name, batch_id)
        except Replan as reason:
            log.info("hop '%s' restarts: %s", hop.name, reason, extra={"hop": hop.name})
            hop.replan = True
            raise

    def _gather(self, hop: Hop, begun: float) -> None:
        """Delay the next batch so that more rows collect, as `ParkedHops` does for hops that wait in their source.

        The delay ends early when a full batch waits: from then on the query would only lose CPU time.
        """
        hop.state = State.LINGERING
        while (left := begun + self.parked_hops.rest_of(hop, GATHER) - time.monotonic()) > 0.0 and not self._is_full(
            hop
        ):
            if self.stopping.wait(min(left, LONGEST_LOOK)):
                self._leave(hop)
        hop.state = State.IDLE

    def _is_full(self, hop: Hop) -> bool:
        """Whether the backlog in Kafka topics is as large as the next batch may be."""
        return self.parked_hops.sized and sum(_backlogs(hop)[1]) >= self.parked_hops.sizer.rows(hop.id)

    def _enter_pool(self, hop: Hop, rows: DataFrame) -> None:
        if name := self.parked_hops.pool(hop):  # jobs inherit it from the hop's own JVM thread, which calls this
            rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", name)

    def _pause(self, hop: Hop) -> None:
        if self.stopping.wait(LOOK):
            self._leave(hop)

    def _leave(self, hop: Hop) -> None:
        """Wait until Spark stops the query, then raise `Stopped`, which Spark does not treat as a failure."""
        until = time.monotonic() + STOPPING
        while time.monotonic() < until and _query(hop).isActive:
            time.sleep(LOOK)
        raise Stopped


def note_bad_rows(hop: Hop, topic: Topic, found: encoded.Bad | None) -> None:
    """Count the values of a topic that a batch left out because they are not rows; log the first ones of a hop."""
    if found is None:
        return
    if not hop.bad_rows:
        log.warning(
            "topic '%s' has values that are not rows: they are skipped, the first at partition %d, offset %d",
            topic.topic,
            found.partition,
            found.offset,
            extra={"hop": hop.name, "topic": topic.topic},
        )
    hop.bad_rows += found.rows


def _backlogs(hop: Hop) -> tuple[list[Topic | KafkaChannel], list[int]]:
    """The Kafka topics that a hop reads, and the backlog of each in rows."""
    topics = [channel for channel in hop.inputs if isinstance(channel, Topic | KafkaChannel)]
    return topics, [channel.backlog(hop.name).rows for channel in topics]


def _query(hop: Hop) -> StreamingQuery:
    """Return the hop's query; wait for it if necessary, since the first batch may begin before it is set."""
    while hop.query is None:
        time.sleep(LOOK)
    return hop.query


def _seen(hop: Hop, before: float, now: float) -> list[ArrivalStats]:
    """How many rows a sink's batch has read from each `foreign` source, and their arrival times."""
    found = [source_metrics.seen(_query(hop), name, before, now) for name in hop.foreign]
    return [ages for ages in found if ages is not None]


def _look_for_bad_rows(hop: Hop) -> None:
    for channel in hop.inputs:
        if isinstance(channel, Topic) and channel.schema is not None:
            note_bad_rows(hop, channel, encoded.bad(_query(hop), channel.name))


def _born(node: Node, ages: Sequence[ArrivalStats], before: float, now: float) -> dict[str, str]:
    """Arrival times of a batch's rows, as `born` of `Channel.append`; between `before` and `now` if unknown."""
    if node.arrival is not None:
        return {"born": node.arrival}
    rows = sum(part.rows for part in ages)
    if rows:
        oldest = min(part.oldest for part in ages)
        mean = oldest + sum((part.mean - oldest) * part.rows for part in ages) // rows
        return {"oldest": str(oldest), "mean": str(mean)}
    return {"oldest": str(int(before * 1e6)), "mean": str(int((before + now) / 2 * 1e6))}
