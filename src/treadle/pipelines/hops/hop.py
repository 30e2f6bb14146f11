"""A hop while it runs: its inputs and output, its counters and its state.

A policy ranks hops by these counters, and the gate grants slots by rank.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from treadle.durations import Backoff
from treadle.model import Topology
from treadle.pipelines.channels.channel import Channel, Source
from treadle.pipelines.channels.cluster import Cluster
from treadle.pipelines.channels.embedded import Embedded
from treadle.pipelines.channels.ledger import ArrivalStats
from treadle.pipelines.channels.view import Backlog
from treadle.pipelines.hops.latency import Latency
from treadle.pipelines.spark.output_rows import OutputRows, RowCounts

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("treadle.pipelines")

BACKOFF = Backoff(0.5, 30.0)
"""Pause in seconds before a failed hop is restarted: the shortest and the longest."""


class State(StrEnum):
    """What a hop does at present, as `treadle ctl status` shows it."""

    STARTING = "starting"
    IDLE = "idle"
    LINGERING = "lingering"
    """The hop waits for more rows, because the waiting rows are not worth a batch yet."""
    WAITING = "waiting"
    RUNNING = "running"
    BLOCKED = "blocked"
    """The hop can't run because its output channel is full."""
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(eq=False)
class Hop(RowCounts):
    """One Structured Streaming query of a pipeline. `id` is its name at the gate and in the topology."""

    id: str
    name: str
    key: str
    """The hop's name in the JVM: pipeline/node, because several pipelines may run there."""
    inputs: Sequence[Source] = ()
    output: Channel | None = None
    stateful: bool = False
    foreign: tuple[str, ...] = ()
    """Sources that the query reads directly, not through a channel."""
    latency: Latency | None = None
    """For a sink: the latencies of its rows."""
    urgent: bool = False
    """Whether the hop's priority is above the lowest one in its pipeline."""
    latency_goal: float = math.inf
    query: StreamingQuery | None = None
    state: State = State.STARTING
    parked: bool = False
    has_slot: bool = False
    """Whether the hop holds a slot: one was granted for its current or last batch and is not released yet."""
    output_rows: OutputRows = field(default_factory=OutputRows)
    """Counts rows that leave the last operator of a sink."""
    cost: float = math.nan
    """Seconds per row of its batches, without their fixed cost."""
    batch_cost: float = math.nan
    """Fixed cost of its batches in seconds."""
    busy: float = 0.0
    batches: int = 0
    ticked: float = 0.0
    """Seconds that the last check for timeouts took if it had nothing to do, including Spark's pause after it."""
    failures: int = 0
    """Failures in a row, without a batch in between."""
    planned: float | None = None
    """When the waiting or running batch was planned (monotonic). It reads what its sources had at that time."""
    well: float = 0.0
    """When the hop last worked (monotonic): the end of its last batch or, before that, the start of its query."""
    leaving: bool = False
    """Whether no further batch starts, because its query is about to be stopped."""
    left: bool = False
    """Whether it has left a channel that was full of its backlog."""
    replan: bool = False
    """Whether the query ended because it must restart, at once, with another plan."""
    bad_rows: int = 0
    """Number of topic values that are not rows."""
    clusters: frozenset[Cluster] = frozenset()
    """The Kafka clusters of the hop's inputs and output."""
    retry_at: float = math.inf
    error: str = ""

    @property
    def gated_by_turn(self) -> bool:
        """Whether the hop waits in its sources for a grant before each batch: if all inputs are channels with `asks`.

        Other hops wait inside `foreachBatch`.
        """
        return bool(self.inputs) and not self.foreign and all(channel.asks for channel in self.inputs)

    @property
    def ended(self) -> bool:
        """Whether its query has ended for good, while others of the run go on."""
        return self.state in (State.FAILED, State.STOPPED)

    @property
    def cut_off(self) -> bool:
        """Whether brokers were unreachable since `well`: then an end of the query does not count as a failure."""
        return any(cluster.failed_since(self.well) for cluster in self.clusters)

    def follow(self, topology: Topology) -> None:
        """Take over the priority and the latency goal that it has in a topology."""
        row, priority = topology.row_of[self.id], topology.priority
        self.urgent = bool(priority[row] > priority.min())
        self.latency_goal = float(topology.latency_goal[row])

    def backlogs(self) -> list[Backlog]:
        return [channel.backlog(self.name) for channel in self.inputs]

    @property
    def blocked(self) -> bool:
        return self.output is not None and self.output.full

    def record_granted_batch(self, report: dict[str, Any]) -> int:
        """Record a batch as the JVM reports it; return the number of rows that it read."""
        rows = 0
        for channel in self.inputs:
            part = report["read"].get(channel.name)
            if channel.name in report["at"] and isinstance(channel, Embedded):
                channel.read_up_to(self.name, report["at"][channel.name])
            if part is not None and isinstance(channel, Embedded):
                channel.read_up_to(self.name, part["end"])
                rows += part["rows"]
                if self.latency is not None:
                    self.latency.add(report["time"], part["ages"])
        self.count(rows, self._left(rows) if self.output is None else report["written"])
        if rows:
            self.busy += report["seconds"]
            self.batches += 1
            self.failures = 0
            self.well = time.monotonic()
        return rows

    def record_foreach_batch(self, ages: Sequence[ArrivalStats], written: int | None, seconds: float) -> None:
        """Record a batch that ran in `foreachBatch`. `written` is its rows out, None for a sink."""
        for channel in self.inputs:
            channel.finish(self.name)
        rows = sum(part.rows for part in ages) if self.inputs or written is None else written
        self.count(rows, self._left(rows) if written is None else written)
        if self.latency is not None:
            self.latency.add(time.time(), ages)
        self.busy += seconds
        self.batches += 1
        self.failures = 0
        self.well = time.monotonic()

    def _left(self, rows: int) -> float:
        return math.nan if self.query is None else self.output_rows.latest(self.query._jsq, rows)

    def try_again(self, retries: float) -> bool:
        """Schedule a restart after the query's end; False after more than `retries` failures in a row."""
        self.planned = None
        if self.replan:
            self.replan, self.state, self.retry_at, self.error = False, State.RESTARTING, 0.0, ""
            return True
        if not self.cut_off:
            self.failures += 1
        if self.failures > retries:
            self.state = State.FAILED
            log.error("hop '%s' failed: %s", self.name, self.error, extra={"hop": self.name})
            return False
        self.state = State.RESTARTING
        self.retry_at = time.monotonic() + BACKOFF.pause(self.failures + 1)
        log.warning("hop '%s' failed and will be restarted: %s", self.name, self.error, extra={"hop": self.name})
        return True
