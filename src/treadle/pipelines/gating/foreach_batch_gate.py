"""Batches of hops that read what is not ours to hold back: Spark has planned them, so the gate is around the work.

It waits until a batch may run, runs it, and notes what it did. Hops that ask first, in the JVM, are not its business:
see `turns`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any

from treadle.enforce.gate.gate import Gate
from treadle.errors import TargetGone
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
"""Seconds between two looks at whether a batch may begin."""
LONGEST_LOOK = 0.2
GATHER = 2.0
"""Seconds from batch to batch at most, where rows are dropped: to have the others later is the lesser evil."""
STOPPING = 60.0


@dataclass(frozen=True)
class ForeachBatchGate:
    """`turns` is told after each batch, and `short` says whether rows are shed because the CPU is short.

    Then each batch less is worth something: Spark would begin the next one at once, for the few rows that have come.
    """

    turns: ParkedHops
    short: Callable[[], bool]
    limit: Callable[[Any, str, int], None]
    """`ReadLimits.set` in the JVM."""

    @property
    def gate(self) -> Gate:
        return self.turns.gate

    @property
    def stopping(self) -> Event:
        return self.turns.stopping

    def batches(self, hop: Hop, node: Node) -> Callable[[DataFrame, int], None]:
        """What foreachBatch calls."""
        work = None if hop.output is not None else build.sink(node)
        looked = time.time()

        def batch(rows: DataFrame, batch_id: int) -> None:
            nonlocal looked
            before, looked = looked, time.time()
            hop.planned = time.monotonic()
            ages = self._wait(hop, batch_id)
            with ExitStack() as turn:
                ran = self._granted(hop, turn)
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
            self.turns.observe(hop, hop.tuples_in - had, time.monotonic() - begun)
            self._size_next(hop)
            self.turns.consider_all()
            if self.short():
                self._gather(hop, begun)

        return batch

    def _size_next(self, hop: Hop) -> None:
        """How many rows the next batch has of each Kafka topic, which Spark plans as soon as this one is done."""
        if not self.turns.sized:
            return
        topics, backlogs = _backlogs(hop)
        most, waiting = self.turns.sizer.rows(hop.id), sum(backlogs)
        for channel, rows in zip(topics, backlogs, strict=True):
            share = max(1, round(most * rows / waiting)) if most < waiting else most
            if (limit := channel.limited(share)) is not None:
                self.limit(_query(hop)._jsq, channel.topic, limit)

    def _granted(self, hop: Hop, turn: ExitStack) -> bool:
        """Wait for a slot, held until the end of `turn`; false where the run ends before there is one."""
        with suppress(TargetGone):
            turn.enter_context(self.gate.turn(hop.id))
            return not self.stopping.is_set()
        return False

    def _wait(self, hop: Hop, batch_id: int) -> list[ArrivalStats]:
        """Until all that the batch reads is decided, and there is room for what it writes."""
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
            log.info("hop '%s' starts anew: %s", hop.name, reason, extra={"hop": hop.name})
            hop.replan = True
            raise

    def _gather(self, hop: Hop, begun: float) -> None:
        """Let rows come together for the next batch, as hops do that ask before they read.

        Once the batch is full no more can come together, and to wait would only keep the query from its share.
        """
        hop.state = State.LINGERING
        while (left := begun + self.turns.rest_of(hop, GATHER) - time.monotonic()) > 0.0 and not self._is_full(hop):
            if self.stopping.wait(min(left, LONGEST_LOOK)):
                self._leave(hop)
        hop.state = State.IDLE

    def _is_full(self, hop: Hop) -> bool:
        """Whether as many rows of Kafka topics wait as the next batch may have."""
        return self.turns.sized and sum(_backlogs(hop)[1]) >= self.turns.sizer.rows(hop.id)

    def _enter_pool(self, hop: Hop, rows: DataFrame) -> None:
        if name := self.turns.pool(hop):  # this is called in the hop's own thread of the JVM, whose jobs inherit it
            rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", name)

    def _pause(self, hop: Hop) -> None:
        if self.stopping.wait(LOOK):
            self._leave(hop)

    def _leave(self, hop: Hop) -> None:
        """Spark is about to stop the query; from then on it takes this for its own doing."""
        until = time.monotonic() + STOPPING
        while time.monotonic() < until and _query(hop).isActive:
            time.sleep(LOOK)
        raise Stopped


def note_bad_rows(hop: Hop, topic: Topic, found: encoded.Bad | None) -> None:
    """Count the values of a topic that a batch has left out; the first are told."""
    if found is None:
        return
    if not hop.bad_rows:
        log.warning(
            "topic '%s' has values that are not rows: they are left out, the first at partition %d, offset %d",
            topic.topic,
            found.partition,
            found.offset,
            extra={"hop": hop.name, "topic": topic.topic},
        )
    hop.bad_rows += found.rows


def _backlogs(hop: Hop) -> tuple[list[Topic | KafkaChannel], list[int]]:
    """The Kafka topics that a hop reads, and the rows of each that wait."""
    topics = [channel for channel in hop.inputs if isinstance(channel, Topic | KafkaChannel)]
    return topics, [channel.backlog(hop.name).rows for channel in topics]


def _query(hop: Hop) -> StreamingQuery:
    """The query that runs: its first batch may begin before the one who starts it knows it."""
    while hop.query is None:
        time.sleep(LOOK)
    return hop.query


def _seen(hop: Hop, before: float, now: float) -> list[ArrivalStats]:
    """What a sink has read of sources that are part of its own query."""
    found = [source_metrics.seen(_query(hop), name, before, now) for name in hop.foreign]
    return [ages for ages in found if ages is not None]


def _look_for_bad_rows(hop: Hop) -> None:
    for channel in hop.inputs:
        if isinstance(channel, Topic) and channel.schema is not None:
            note_bad_rows(hop, channel, encoded.bad(_query(hop), channel.name))


def _born(node: Node, ages: Sequence[ArrivalStats], before: float, now: float) -> dict[str, str]:
    """When the rows of a batch had arrived, as far as it is known."""
    if node.arrival is not None:
        return {"born": node.arrival}
    rows = sum(part.rows for part in ages)
    if rows:
        oldest = min(part.oldest for part in ages)
        mean = oldest + sum((part.mean - oldest) * part.rows for part in ages) // rows
        return {"oldest": str(oldest), "mean": str(mean)}
    return {"oldest": str(int(before * 1e6)), "mean": str(int((before + now) / 2 * 1e6))}
