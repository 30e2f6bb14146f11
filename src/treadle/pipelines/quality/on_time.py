"""Measures, by rates, which part of its due rows each query has finished, and which queries have stalled.

Rows arrive one by one and are finished batch by batch, so in a healthy query the quotient of both rates swings between
0 and far above 1. So a row is due only after the time of two batches of its query, and rates are taken over some
cycles, like the rates of Flink that the paper uses. A query that has stopped is not averaged: `stalled` reports it at
once. This module knows counters, and nothing of what is dropped. Stream-Economics, Eq. 4.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from treadle.model import Bools, Floats, Ints

BATCHES = 2
"""A row that arrives just after a batch was planned is finished with the next batch: the time of two is normal."""
LEAST, MOST = 1, 4
"""Limits of that time, in cycles: a query with batches of more than two cycles is late."""
OVERDUE = 1.5
"""A batch that takes so many times as long as the longest recent batch, and longer than a cycle, counts as stalled."""
NEARLY = 0.99
"""Tolerance, since the length of a cycle is not exact."""


class Progress(NamedTuple):
    """Counters by query at one moment, since the query began."""

    done: Floats
    """Rows in batches that have ended."""
    came: Floats
    """Rows that have arrived: `done`, and all that wait."""
    batches: Floats
    ended: Floats
    """When the last batch ended (monotonic)."""


class OnTime:
    """The part of the due rows that each of several queries has finished.

    It is updated once a `cycle` (seconds) and remembers the last `window` cycles.
    """

    def __init__(self, queries: int, cycle: float, window: int) -> None:
        self._cycle, self._window = cycle, window
        self._looks: deque[tuple[float, Progress, Floats]] = deque(maxlen=window + MOST + 1)
        """Samples: time, progress, and since when the first batch that had not ended by then can have run."""
        self._idle = np.full(queries, -np.inf)
        """By query: time of the last sample at which no rows waited. A batch that runs now began after it."""
        self._longest = np.zeros(queries)
        """By query: seconds of its longest recent batch, kept during a pause without batches."""
        self._since = np.full(queries, -np.inf)
        self._known = np.zeros(queries, dtype=np.bool_)

    def restart(self, query: int, now: float) -> None:
        """Ignore what the query did before `now`, because it runs on another worker from then on."""
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
        """By query: False until it has finished rows, rows are due, or no rows wait."""
        return self._known.copy()

    @property
    def part(self) -> Floats:
        """By query, over the window: rows finished by rows due; 1 if no rows are due.

        Above 1 while a query finishes rows that were late.
        """
        finished, fell_due, _ = self._lately(self._window)
        asked = fell_due > 0.0
        return np.where(asked, finished / np.where(asked, fell_due, 1.0), 1.0)

    @property
    def stalled(self) -> Bools:
        """By query: True if rows have waited for a whole cycle, and no batch has ended for longer than batches take."""
        (_, before, _), (now, last, began) = self._looks[max(len(self._looks) - 2, 0)], self._looks[-1]
        silent = now - began >= np.maximum(OVERDUE * self._longest, NEARLY * self._cycle)
        found: Bools = silent & (before.came > last.done)
        return found

    def _lately(self, cycles: int) -> tuple[Floats, Floats, Ints]:
        """By query: rows finished, rows that fell due, and cycles counted, in the last `cycles` or since `restart`."""
        times = np.array([time for time, *_ in self._looks])
        done = np.array([each.done for _, each, _ in self._looks])
        due = self._due(times, done)
        begin = np.maximum(self._since, times[max(len(times) - 1 - cycles, 0)])
        first = np.minimum((times[:, None] < begin).sum(axis=0), len(times) - 1)
        query = np.arange(len(first))
        return done[-1] - done[first, query], due[-1] - due[first, query], len(times) - 1 - first

    def _due(self, times: Floats, done: Floats) -> Floats:
        """By sample and query: the rows that were due by then. Finished rows count as due."""
        came = np.array([each.came for _, each, _ in self._looks])
        ago = times[:, None] - self._allowed()
        due = np.stack([np.interp(ago[:, query], times, came[:, query]) for query in range(came.shape[1])], axis=1)
        found: Floats = np.maximum(due, done)
        return found

    def _allowed(self) -> Floats:
        """By query: the seconds that its rows may take."""
        found: Floats = np.clip(BATCHES * self._longest, LEAST * self._cycle, MOST * self._cycle)
        return found

    def _measure_batches(self) -> None:
        """Update the longest time from batch to batch while rows waited."""
        batches = np.diff(np.array([each.batches for _, each, _ in self._looks]), axis=0)
        passed = (
            np.array([each.ended for _, each, _ in self._looks])[1:] - np.array([at for *_, at in self._looks])[:-1]
        )
        waited = np.array([each.came > each.done for _, each, _ in self._looks])[:-1]
        counts = (batches > 0.0) & waited
        each = np.where(counts, passed / np.where(counts, batches, 1.0), 0.0)
        self._longest = np.where(counts.any(axis=0), each.max(axis=0, initial=0.0), self._longest)
