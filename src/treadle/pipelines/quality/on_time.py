"""Measures which share of its due rows each query has finished, and which queries have stalled.

This is Eq. 4 of Stream-Economics: the rate of finished rows divided by the rate of arriving rows. But rows arrive one
by one and are finished batch by batch, so in a healthy query this quotient swings between 0 and far above 1. Therefore
a row is due only after the time of two batches of its query, and rates are averaged over some cycles, like the Flink
rates in the paper. A query that stops is reported by `stalled` at once, without averaging. This module reads counters
of rows and batches; it does not know which rows were dropped.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from treadle.model import Bools, Floats, Ints

BATCHES = 2
"""A row is due after the time of this many batches: if it arrives just after one was planned, the next one reads it."""
LEAST, MOST = 1, 4
"""Shortest and longest time until a row is due, in cycles.

Since a row may need `BATCHES` batches, a query is late if its batches take longer than `MOST` / `BATCHES` cycles."""
OVERDUE = 1.5
"""A query has stalled if its running batch takes this many times its longest recent batch, and at least a cycle."""
NEARLY = 0.99
"""From this share of a cycle on, a time counts as a whole cycle, because cycles are not of exactly equal length."""


class Progress(NamedTuple):
    """A sample of counters, each an array by query. Rows and batches are counted from the start of the query."""

    done: Floats
    """Rows in batches that have ended."""
    came: Floats
    """Rows that have arrived: `done` and the rows that still wait."""
    batches: Floats
    ended: Floats
    """When the last batch ended (monotonic)."""


class OnTime:
    """The share of the due rows that each of several queries has finished, over the last `window` cycles.

    `look` is called once a `cycle` (seconds).
    """

    def __init__(self, queries: int, cycle: float, window: int) -> None:
        self._cycle, self._window = cycle, window
        self._looks: deque[tuple[float, Progress, Floats]] = deque(maxlen=window + MOST + 1)
        """Samples: time, counters, and by query the earliest time at which its next batch to end can have begun."""
        self._idle = np.full(queries, -np.inf)
        """By query: time of the last sample at which no rows waited. The batch that runs now began after that time."""
        self._longest = np.zeros(queries)
        """By query: seconds of its longest recent batch. In a pause without batches the value stays."""
        self._since = np.full(queries, -np.inf)
        self._known = np.zeros(queries, dtype=np.bool_)

    def restart(self, query: int, now: float) -> None:
        """Ignore the samples of a query from before `now`, because from now on it runs on another worker."""
        self._since[query], self._known[query] = now, False

    def look(self, now: float, progress: Progress) -> None:
        if not self._looks:
            self._idle[:] = now  # earlier times are not known
        self._idle = np.where(progress.came <= progress.done, now, self._idle)
        self._looks.append((now, progress, np.maximum(progress.ended, self._idle)))
        self._measure_batches()
        finished, fell_due, cycles = self._lately(len(self._looks))
        nothing_waits = (cycles > 0) & (progress.came <= progress.done)
        self._known |= (finished > 0.0) | (fell_due > 0.0) | nothing_waits

    @property
    def known(self) -> Bools:
        """By query: whether `part` is meaningful. False until it has finished rows, rows are due, or none wait."""
        return self._known.copy()

    @property
    def part(self) -> Floats:
        """By query, over the window: rows finished divided by rows that became due; 1 if none became due.

        The value is above 1 while a query finishes rows that were late.
        """
        finished, fell_due, _ = self._lately(self._window)
        asked = fell_due > 0.0
        return np.where(asked, finished / np.where(asked, fell_due, 1.0), 1.0)

    @property
    def stalled(self) -> Bools:
        """By query: whether rows have waited for a whole cycle while its running batch is overdue (see `OVERDUE`)."""
        (_, before, _), (now, last, began) = self._looks[max(len(self._looks) - 2, 0)], self._looks[-1]
        silent = now - began >= np.maximum(OVERDUE * self._longest, NEARLY * self._cycle)
        found: Bools = silent & (before.came > last.done)
        return found

    def _lately(self, cycles: int) -> tuple[Floats, Floats, Ints]:
        """By query: rows finished, rows that became due, and number of cycles, over the last `cycles` cycles.

        For a query that was restarted since, only the cycles after `restart` count.
        """
        times = np.array([time for time, *_ in self._looks])
        done = np.array([each.done for _, each, _ in self._looks])
        due = self._due(times, done)
        begin = np.maximum(self._since, times[max(len(times) - 1 - cycles, 0)])
        first = np.minimum((times[:, None] < begin).sum(axis=0), len(times) - 1)
        query = np.arange(len(first))
        return done[-1] - done[first, query], due[-1] - due[first, query], len(times) - 1 - first

    def _due(self, times: Floats, done: Floats) -> Floats:
        """By sample and query: how many rows were due at the time of the sample. Finished rows count as due."""
        came = np.array([each.came for _, each, _ in self._looks])
        ago = times[:, None] - self._allowed()
        due = np.stack([np.interp(ago[:, query], times, came[:, query]) for query in range(came.shape[1])], axis=1)
        found: Floats = np.maximum(due, done)
        return found

    def _allowed(self) -> Floats:
        """By query: seconds from the arrival of a row until it is due."""
        found: Floats = np.clip(BATCHES * self._longest, LEAST * self._cycle, MOST * self._cycle)
        return found

    def _measure_batches(self) -> None:
        """Update `_longest` from the pairs of samples between which batches ended, if rows waited at the first one."""
        batches = np.diff(np.array([each.batches for _, each, _ in self._looks]), axis=0)
        passed = (
            np.array([each.ended for _, each, _ in self._looks])[1:] - np.array([at for *_, at in self._looks])[:-1]
        )
        waited = np.array([each.came > each.done for _, each, _ in self._looks])[:-1]
        counts = (batches > 0.0) & waited
        each = np.where(counts, passed / np.where(counts, batches, 1.0), 0.0)
        self._longest = np.where(counts.any(axis=0), each.max(axis=0, initial=0.0), self._longest)
