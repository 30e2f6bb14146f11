"""What a promise needs to know of one run of a streaming query: arriving rows, backlog, and the CPU use of its batches.

It is fed with Spark's progress and with samples of the CPU, all in seconds of the monotonic clock, which is never set.
Of a batch that began at an unknown time (NaN) only the rows count.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from treadle.decide.quality import InputRate, Promise
from treadle.engines.spark.agent.shedder import Report
from treadle.engines.spark.queries.progress import Progress

CYCLE = 2.0
MOST_SAMPLES = 4000
"""The most samples of a query's CPU use that are kept."""
WINDOW = 3
"""Cycles over which work is averaged; more if they contain too few batches (`BATCHES`)."""
BATCHES = 2
ALWAYS = 0.8
"""A query that is in a batch for at least this share of the time counts as always in a batch: rows that arrive during a
batch wait for the next one."""
UNMEASURED = 30.0
"""Maximum seconds for which a query does not drop more rows because another query, which has to drop rows first, is not
measured yet."""
REAL_TIME = "it runs in Real-Time Mode, whose plan can't be changed while it runs"
ENDS = "its trigger (AvailableNow or Once) ends it once the available rows are read, so no row can be late"
LAG_UNKNOWN = "its source reports no lag"


class Done(NamedTuple):
    """What a query did in its last batches, per second."""

    rows: float
    batches: float
    cpu: float
    held: float
    """The share of the time in which the query was in a batch."""


NOTHING = Done(0.0, 0.0, 0.0, 0.0)


@dataclass
class Query:
    """One run of a query of an attached application."""

    name: str
    promise: Promise
    real_time: bool
    ends: bool = False
    rate: float = 0.0
    waiting: float = 0.0
    keep: float = 1.0
    desired: float = 1.0
    told: float = 1.0
    """The share of kept rows that was last logged."""
    said: set[str] = field(default_factory=set)
    """The reasons for keeping all rows that were logged."""
    accuracy: float | None = None
    """The share of the query's rows that was kept lately; None if it is not known."""
    rows: float = 0.0
    met: float = field(default_factory=time.monotonic)
    _lag_known: bool = True
    """Whether its last batch with rows reports the lag of its sources; true until there was a batch."""
    _since: float = -math.inf
    """Batches that began before this time are not measured."""
    _batches: deque[Progress] = field(default_factory=deque)
    _last: Progress | None = None
    _input: InputRate = field(default_factory=lambda: InputRate(WINDOW * CYCLE))
    _counted: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))
    """At each of the last reports: total rows that were read, that reached the filter, and that the filter dropped."""
    _unseen: int = 0
    """Number of consecutive reports with rows read, but none at the filter, although there should be a filter."""
    _used: list[tuple[float, float]] = field(default_factory=list)
    """(time, core seconds that the query had used by then)."""

    def __post_init__(self) -> None:
        self._used.append((self.met, 0.0))
        self._since = self.met

    @property
    def keeps_all(self) -> str | None:
        """Why the query must keep all rows, whatever its promise says; None if rows can be dropped.

        Without a known lag, all rows that are read would count as just arrived. The fewer rows are kept, the faster a
        source is read. So more and more rows of files or of a backfill would be dropped, although they are not late.
        """
        if self.real_time:
            return REAL_TIME
        if self.ends:
            return ENDS
        return None if self._lag_known else LAG_UNKNOWN

    @property
    def sheds(self) -> bool:
        """Whether rows of it may be dropped."""
        return self.promise.accuracy < 1.0 and self.keeps_all is None

    @property
    def measured(self) -> bool:
        """Whether it has had a batch from which the cost of its rows is known."""
        return bool(self._batches)

    def comes_before(self, other: Query) -> bool:
        """Whether this query must drop rows before the other one, but was met lately and is not measured yet."""
        first = self.sheds and self.promise.priority < other.promise.priority
        return first and not self.measured and time.monotonic() - self.met < UNMEASURED

    def forget(self, now: float) -> None:
        """Measure anew: the wall clock was set, so times of batches before and after it can't be compared."""
        self._since = now
        self._batches.clear()
        self._last = None
        self._input = InputRate(WINDOW * CYCLE)

    def hear(self, report: Report) -> None:
        """Update with a new report."""
        for each in report.progress:
            self._take(each)
        while len(self._batches) > BATCHES and _end(self._batches[-1]) - self._batches[1].began > WINDOW * CYCLE:
            self._batches.popleft()
        if report.progress:
            self._counted.append((self.rows, float(report.seen), float(report.seen - report.kept)))
            rows, seen, dropped = np.subtract(self._counted[-1], self._counted[0]).tolist()
            self._unseen = self._unseen + 1 if rows and not seen and self.keep < 1.0 else 0
            if rows:
                self.accuracy = max(0.0, 1.0 - dropped / rows) if self._unseen <= WINDOW else None

    @property
    def kept(self) -> float:
        """The share of the query's rows that was kept; the share that was set if the kept rows are not counted."""
        return self.accuracy if self.accuracy is not None else self.keep

    def use(self, now: float, seconds: float) -> None:
        """Add the CPU seconds that the query has used since the last call."""
        self._used.append((now, self._used[-1][1] + seconds))
        if len(self._used) > MOST_SAMPLES or (self._batches and self._used[1][0] < self._batches[0].began - CYCLE):
            del self._used[0]

    def cores(self, begin: float, end: float) -> float:
        """Return the cores that it used on average between two times."""
        when, used = np.array(self._used).T
        began, ended = np.interp([begin, end], when, used).tolist()
        return float(ended - began) / max(end - begin, 1e-3)

    def done(self) -> Done:
        """Return the work of the last batches; `NOTHING` if no batch has been measured yet."""
        if not self._batches:
            return NOTHING
        begin, end = self._batches[0].began, max(map(_end, self._batches))
        passed = max(end - begin, 1e-3)
        rows, held = sum(each.rows for each in self._batches), sum(each.seconds for each in self._batches)
        return Done(rows / passed, len(self._batches) / passed, self.cores(begin, end), min(1.0, held / passed))

    def _take(self, batch: Progress) -> None:
        self.rows += batch.rows
        if batch.rows:
            self._lag_known = not math.isnan(batch.waiting)
        if math.isnan(batch.began) or (self._last is not None and batch.began < self._last.began):
            return
        if (rate := self._input.update(batch.began, self.rows, batch.unread)) is not None:
            self.rate = rate.arriving
        self.waiting = batch.unread + self._late(batch)
        if self._last is not None and batch.rows and batch.began >= self._since:
            self._batches.append(batch)  # not the first, in which code for later batches is compiled
        self._last = batch

    def _late(self, batch: Progress) -> float:
        """Return how many rows of a batch had waited for longer than a cycle for the end of the batch before it."""
        before = self._last
        if before is None or before.seconds < ALWAYS * (batch.began - before.began):
            return 0.0
        return max(0.0, batch.rows - self.rate * CYCLE)


def _end(batch: Progress) -> float:
    return batch.began + batch.seconds
