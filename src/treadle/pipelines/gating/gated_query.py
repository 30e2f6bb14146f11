"""A query of an existing application while it is scheduled: the cost of its batches and its estimated backlog.

Spark reports a batch only after it is done, and only then the rows and seconds of the batch are counted. The backlog is
known for the moment at which Spark planned the batch.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from treadle.decide.batch import BatchSizer
from treadle.enforce.gate.stats import HopStats
from treadle.engines.spark.queries.progress import Progress
from treadle.model import Instance
from treadle.pipelines.gating.arrival_history import ArrivalHistory
from treadle.pipelines.gating.assigning import group_of
from treadle.pipelines.hops.hop import State
from treadle.pipelines.spark.output_rows import OutputRows, RowCounts
from treadle.pipelines.spark.queries import Stopped
from treadle.values import known

log = logging.getLogger("treadle.pipelines")


class Wish(NamedTuple):
    """The user's settings for a query; `latency_goal` is in seconds."""

    priority: float
    latency_goal: float | None
    name: str | None


class GatedQuery(RowCounts):
    """One run of a streaming query; `query` is Spark's object in the JVM. Several threads may use it."""

    def __init__(self, query: Any, wish: Wish, costs: BatchSizer, output_rows: OutputRows) -> None:
        super().__init__()
        self.wish = wish
        self.run = str(query.runId())
        self.identity = str(query.id())
        self.name = wish.name or query.name() or f"query-{self.identity[:8]}"
        self.id = ""
        self.state = State.IDLE
        self.batches = 0
        self.seconds = 0.0
        """Seconds from the request for a slot to the end of the batch, summed over all batches."""
        self._query = query
        self._costs = costs
        self._output_rows = output_rows
        self._execution: Any = None
        """Spark's `IncrementalExecution` of the last batch, until its rows are counted."""
        self._lock = threading.Lock()
        self._busy = 0.0
        self._queue = math.nan
        self._read = 0.0
        """Rows read up to the end of the last reported batch, counted by offsets from an arbitrary start."""
        self._arrivals = ArrivalHistory()
        self._offered = math.nan
        self._asked = math.nan
        self._last: Progress | None = None
        self._batch = -1
        self._held = 0.0

    def call(self, taken: Collection[str]) -> None:
        """Set the id, after adding a number to the query's name if that is one of `taken`."""
        own, number = self.name, 2
        while self.name in taken:
            self.name, number = f"{own}-{number}", number + 1
        self.id = Instance(self.name, (self.name,), 0, "spark").id

    @property
    def active(self) -> bool:
        """Whether Spark still runs the query. While it is being stopped it is not active, though a batch may run."""
        try:
            return bool(self._query.isActive())
        except Exception:  # the JVM has ended, and its queries with it
            return False

    def offers(self, batch: int) -> None:
        """Record that a batch is planned and waits for a slot; update the backlog."""
        self.look()
        latest = self._planned()
        with self._lock:
            self._batch = batch
            self.state = State.WAITING
            self._offered, self._asked = time.time(), time.monotonic()
            if self._last is not None and latest:
                self._queue = self._last.behind(latest)
                self._arrivals.note(self._offered, self._read + self._queue)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context in which a batch runs; its time is counted here, its rows by `look` once Spark reports them."""
        self.state = State.RUNNING
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            if self.active:
                raise
            # Spark would search this whole error text for its interruption, and often overflow its stack.
            log.debug("query '%s' was stopped within its batch", self.name, exc_info=error)
            raise Stopped(f"query '{self.name}'") from None
        finally:
            with self._lock:
                now = time.monotonic()
                self._held = now - began
                self._execution = self._last_execution()
                self.seconds += now - self._asked
                self.batches += 1
                self.state = State.IDLE

    def look(self) -> None:
        """Read Spark's report of the last batch, unless that was done before."""
        with self._lock:
            if self.state is not State.IDLE or (self._last is not None and self._last.batch == self._batch):
                return
            try:
                report = self._query.lastProgress()
                progress = None if report is None else Progress.parse(report.json())
            except Exception as error:
                log.debug("no progress of query '%s': %s", self.name, error)
                return
            if progress is None or progress.run != self.run or progress.batch != self._batch:
                return
            self.count(progress.rows, self._output_rows.of(self._execution, progress.rows))
            self._execution = None
            self._busy += self._held
            if self.batches > 1:  # the first one pays for compiling
                self._costs.observe(self.id, progress.rows, self._held)
            if self._last is not None:
                self._read += self._last.behind(progress.ends)
            if math.isnan(self._read):  # sources have no row offsets, or have changed: start over
                self._read, self._arrivals = 0.0, ArrivalHistory()
            self._queue = progress.waiting
            self._arrivals.note(progress.began, self._read + self._queue)
            self._last = progress

    @property
    def done(self) -> tuple[int, float, int]:
        """Number of batches since the query's start, the sum of their `seconds`, and the rows that they have read."""
        return self.batches, self.seconds, self.tuples_in

    def measures(self, now: float) -> tuple[float, ...]:
        """Values of `hop_engine.MEASURES`, in that order; `now` is in seconds since 1970."""
        with self._lock:
            oldest, youngest = self._ages()
            ages = (0.0, 0.0) if self._queue == 0 else (now - oldest, now - (oldest + youngest) / 2)
            aged = [max(age, 0.0) for age in ages]  # the clock may have been set back; NaN stays NaN
            cost = self._costs.cost(self.id)
            fixed, per_row = (math.nan, math.nan) if cost is None else cost
            return (self._queue, *aged, *self.flow, per_row, fixed, self._busy, float(self.batches))

    def _ages(self) -> tuple[float, float]:
        """Arrival times of the oldest and the youngest waiting row, NaN if unknown. The caller holds the lock."""
        if not math.isnan(self._queue):
            return self._arrivals.came(self._read), self._arrivals.latest
        if self.state is State.IDLE or self._last is None:
            return math.nan, math.nan
        return self._last.began, self._offered  # a batch has rows that arrived after the previous one was planned

    def status(self, counts: HopStats | None, priority: float) -> dict[str, Any]:
        """The state as JSON values; unknown is None."""
        queue, age, *_ = self.measures(time.time())
        return {
            "state": str(self.state),
            "rank": None if counts is None else known(counts.rank),
            "group": None if counts is None else group_of(counts.group),
            "priority": priority,
            "queue": known(queue),
            "head_age_seconds": known(round(age, 3)),
            "rows_in": self.tuples_in,
            "rows_out": known(self.rows_out),
            "batches": self.batches,
            "busy_seconds": round(self._busy, 3),
            "waited_seconds": None if counts is None else round(counts.waited, 3),
            "error": None,
        }

    def _last_execution(self) -> Any:
        with suppress(Exception):  # Spark internals, or the query is being stopped
            return self._query.streamingQuery().lastExecution()
        return None

    def _planned(self) -> dict[str, Any]:
        """By source: the latest offset when the waiting batch was planned; empty if unknown.

        Spark reports this offset only when the batch has ended. That is too late for the backlog: without a limit of
        rows per batch, the ended batch has read all rows up to this offset, so the backlog is 0 in every report.
        """
        if self._last is None or math.isnan(self._last.waiting):
            return {}
        found: dict[str, Any] = {}
        with suppress(Exception):  # Spark internals: if they fail, the last report is used
            entries = self._query.streamingQuery().latestOffsets().iterator()
            while entries.hasNext():
                entry = entries.next()
                found[str(entry._1().toString())] = json.loads(entry._2().json())
        return found
