"""A query of an existing application while it is scheduled: what its batches took, and what it seems to have waiting.

It asks Spark about one query and counts. Spark reports a batch only after it is done, so rows and the time that they
took are counted together then; what waits is known as of the moment at which Spark planned the batch.
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
from treadle.pipelines.hops.hop import State
from treadle.pipelines.spark.output_rows import OutputRows, RowCounts
from treadle.pipelines.spark.queries import Stopped
from treadle.values import known

log = logging.getLogger("treadle.pipelines")


class Wish(NamedTuple):
    """What the owner of a query wants of it; `latency_goal` in seconds."""

    priority: float
    latency_goal: float | None
    name: str | None


class GatedQuery(RowCounts):
    """One run of a streaming query, which is Spark's object in the JVM. Several threads may ask."""

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
        """From when batches asked for their turn to when they were done, of all of them together."""
        self._query = query
        self._costs = costs
        self._output_rows = output_rows
        self._execution: Any = None
        """Spark's object of the last batch that has run, until what it did is noted."""
        self._lock = threading.Lock()
        self._busy = 0.0
        self._queue = math.nan
        self._read = 0.0
        """Rows by their offsets, up to the end of the last batch reported."""
        self._arrivals = ArrivalHistory()
        self._offered = math.nan
        self._asked = math.nan
        self._last: Progress | None = None
        self._batch = -1
        self._held = 0.0

    def call(self, taken: Collection[str]) -> None:
        """Give it a name that no other has."""
        own, number = self.name, 2
        while self.name in taken:
            self.name, number = f"{own}-{number}", number + 1
        self.id = Instance(self.name, (self.name,), 0, "spark").id

    @property
    def active(self) -> bool:
        """Whether Spark still runs it. One that is being stopped is not active, although its batch may still run."""
        try:
            return bool(self._query.isActive())
        except Exception:  # the JVM is gone, and all of its queries with it
            return False

    def offers(self, batch: int) -> None:
        """A batch is planned and waits for its turn."""
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
        """The batch has its turn, for the body of a `with`; Spark tells what was in it a moment after its end."""
        self.state = State.RUNNING
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            if self.active:
                raise
            # Spark would look for its interruption in the whole text of this, and often overflow its stack with that.
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
        """Note what Spark reports of the last batch, if that is news."""
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
            if math.isnan(self._read):  # its sources don't tell, or have changed: what is known of arrivals is void
                self._read, self._arrivals = 0.0, ArrivalHistory()
            self._queue = progress.waiting
            self._arrivals.note(progress.began, self._read + self._queue)
            self._last = progress

    @property
    def done(self) -> tuple[int, float, int]:
        """Batches, their seconds, and the rows in them, since its start."""
        return self.batches, self.seconds, self.tuples_in

    def measures(self, now: float) -> tuple[float, ...]:
        """In the order of `engine.MEASURES`; `now` in seconds since 1970."""
        with self._lock:
            oldest, youngest = self._ages()
            ages = (0.0, 0.0) if self._queue == 0 else (now - oldest, now - (oldest + youngest) / 2)
            aged = [max(age, 0.0) for age in ages]  # the clock may have been set back; NaN stays NaN
            cost = self._costs.cost(self.id)
            fixed, per_row = (math.nan, math.nan) if cost is None else cost
            return (self._queue, *aged, *self.flow, per_row, fixed, self._busy, float(self.batches))

    def _ages(self) -> tuple[float, float]:
        """When the oldest and the youngest row that waits came, as far as known. The lock is held."""
        if not math.isnan(self._queue):
            return self._arrivals.came(self._read), self._arrivals.latest
        if self.state is State.IDLE or self._last is None:
            return math.nan, math.nan
        return self._last.began, self._offered  # what is in a batch came after the one before was planned

    def status(self, counts: HopStats | None) -> dict[str, Any]:
        """As JSON can carry it; unknown is None."""
        queue, age, *_ = self.measures(time.time())
        return {
            "state": str(self.state),
            "rank": None if counts is None else known(counts.rank),
            "priority": self.wish.priority,
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
        with suppress(Exception):  # inner parts of Spark, or it is being stopped
            return self._query.streamingQuery().lastExecution()
        return None

    def _planned(self) -> dict[str, Any]:
        """How far the sources are as of the batch that waits, by their descriptions.

        Spark reports that only when the batch is done; without a limit of rows per batch that would always be nothing.
        """
        if self._last is None or math.isnan(self._last.waiting):
            return {}
        found: dict[str, Any] = {}
        with suppress(Exception):  # inner parts of Spark: without them the last report has to do
            entries = self._query.streamingQuery().latestOffsets().iterator()
            while entries.hasNext():
                entry = entries.next()
                found[str(entry._1().toString())] = json.loads(entry._2().json())
        return found
