"""One target of the load process: gives rows to its sink when they are due, and measures how late they are.

A row is late from the moment at which it is due until its sink counts it as sent. So nothing is hidden by a process
that was stopped, a generator that is too slow, or a target that does not take rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from treadle.workloads.load.rates import Schedule, Whole

CHUNK = 20_000
"""Most rows that are given to a sink at once, so that other targets and reports don't wait for long."""


class Sink(Protocol):
    """Takes the rows of a target, in order."""

    interval: int
    """Microseconds between two sends."""
    sent: int
    """Number of rows that have arrived, as far as `poll` has found out."""

    @property
    def room(self) -> int:
        """The number of rows that can be sent now."""

    def send(self, first: int, created: Whole) -> None:
        """Send rows, from number `first` on, with these creation times in microseconds since 1970."""

    def poll(self) -> None:
        """Bring `sent` up to date."""

    def close(self) -> None: ...


class Flow:
    """The rows of one target. Times are microseconds since the beginning, which was at `epoch` (since 1970)."""

    def __init__(self, schedule: Schedule, sink: Sink, *, epoch: int, limit: int) -> None:
        self.schedule = schedule
        self.sink = sink
        self.next = 0
        """When `step` is due again."""
        self.late = 0
        """The time in which a row was late by more than `limit`."""
        self.worst = 0
        """The worst lag so far."""
        self._epoch = epoch
        self._limit = limit
        self._given = 0
        self._checked = 0
        self._lag = 0
        self._open: deque[tuple[int, Whole]] = deque()
        """Rows that are not sent yet, in chunks: the first row's number, and the times at which the rows are due."""

    @property
    def unconfirmed(self) -> int:
        """The number of rows that were given to the sink, which has not sent them yet."""
        return self._given - self.sink.sent

    def step(self, until: int, clock: Callable[[], int]) -> None:
        """Give rows that are due at `until` to the sink, at most `CHUNK`; find out which ones were sent."""
        before = self.sink.sent
        left = self.schedule.rows(until) - self._given
        count = min(left, CHUNK, self.sink.room)
        if count > 0:
            due = self.schedule.times(self._given, count)
            self._open.append((self._given, due))
            self._given += count
            self.sink.send(self._given - count, due + self._epoch)
        self.sink.poll()
        now = clock()
        if self._open:
            first, due = self._open[0]
            self._measure(int(due[before - first]), now)
        self._checked = now
        while self._open and self._open[0][0] + len(self._open[0][1]) <= self.sink.sent:
            self._open.popleft()
        # While rows are left over that the sink can take, there is no pause.
        self.next = now if 0 < count < left else (now // self.sink.interval + 1) * self.sink.interval

    def take_lag(self) -> int:
        """The worst lag since the last call."""
        lag, self._lag = self._lag, 0
        return lag

    def _measure(self, oldest: int, now: int) -> None:
        """Record the lag of the row that was the oldest one before this step, and was due at `oldest`."""
        self._lag = max(self._lag, now - oldest)
        self.worst = max(self.worst, now - oldest)
        self.late += max(0, now - max(self._checked, oldest + self._limit))
