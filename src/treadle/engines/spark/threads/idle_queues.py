"""What waits before a stage, told from what its thread is found doing: waiting for input, blocked on output, running.

Spark counts nothing between the stages of a batch in Real-Time Mode, but a thread that waits for input has an empty
queue, and one that is never found so has a queue that grows. It knows the stack frames of Spark and Kafka, not threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from treadle.jvm import JavaThread
from treadle.model import Floats, Ints

TAU = 1.5
"""Seconds over which what was found is averaged."""
LONGEST = 10_000.0
"""Tuples; an estimate never says more."""


class Doing(IntEnum):
    """What a stage's thread was found doing."""

    UNKNOWN = 0
    WAITING = 1
    """It waits for input: its queue is empty."""
    BLOCKED = 2
    """It can't get rid of its output: the queue of the next stage is full."""
    RUNNING = 3
    """It has input to work on, whether or not it has a core."""


def doing(thread: JavaThread) -> Doing:
    """What the thread of a task does, by the top of its stack."""
    frames = thread.stack
    if thread.state in ("WAITING", "TIMED_WAITING"):
        blocked = any("StreamingShuffleWriter" in frame or "kafka.clients.producer" in frame for frame in frames)
        return Doing.BLOCKED if blocked else Doing.WAITING
    if thread.state == "RUNNABLE" and any(frame.startswith(_POLLING) for frame in frames):
        return Doing.WAITING
    return Doing.RUNNING if thread.state else Doing.UNKNOWN


_POLLING = "org.apache.kafka.common.network.Selector."
"""A thread inside of `epoll_wait` counts as runnable for the JVM."""


class Estimate:
    """The length of each row's queue, as far as the share of time tells in which its thread was found idle.

    The idle share i is averaged with the time constant `TAU`: i <- i e^(-t/TAU) + (1 - e^(-t/TAU)) [waiting], where the
    kernel's counters say it exactly and a stack only whether it was for input or because of the output. A queue
    with one server that is busy for the share 1 - i holds (1 - i) / i tuples on average (M/M/1), and that is the
    estimate. A thread that is never found idle has an i that halves every second, so its estimate doubles as often, up
    to `LONGEST`: it is longer behind than the others. A row whose upstream is blocked on its output has a full queue,
    so the estimate is `LONGEST` at once. Numbers are good for comparing stages, not for adding tuples up.
    """

    def __init__(self) -> None:
        self._idle = np.empty(0)
        self._time = math.nan

    def realign(self, source: Ints) -> None:
        """Rows are others now: for each the row where it was before, -1 for a new one."""
        self._idle = realigned(self._idle, source)

    def update(
        self,
        time: float,
        found: Sequence[Doing],
        edges: tuple[Ints, Ints, Floats],
        idle: Floats | None = None,
    ) -> Floats:
        """A look at all rows; the estimate for each.

        `idle` is the part of the time since the last look in which each thread neither ran nor waited for a core, as
        the kernel counts it: what one look is a sample of. NaN where that is not known.
        """
        now = np.array(found, dtype=np.int64)
        passed = max(0.0, time - self._time) if math.isfinite(self._time) else TAU
        self._time = time
        keep = math.exp(-passed / TAU)
        seen = np.where(now == Doing.WAITING, 1.0, 0.0)
        if idle is not None:
            seen = np.where(np.isnan(idle) | (now == Doing.BLOCKED), seen, idle)
        seen = np.where(now == Doing.UNKNOWN, np.nan, seen)
        old = np.where(np.isnan(self._idle), 0.5, self._idle)
        fresh = np.where(np.isnan(seen), self._idle, old * keep + (1.0 - keep) * seen)
        self._idle = fresh
        idle = np.maximum(fresh, 1.0 / (1.0 + LONGEST))
        queue: Floats = (1.0 - idle) / idle
        start, end, _ = edges
        full = end[(now[start] == Doing.BLOCKED) & (now[end] != Doing.UNKNOWN)]
        queue[full] = LONGEST
        queue[now == Doing.UNKNOWN] = np.nan
        return queue


def realigned(column: Floats, source: Ints) -> Floats:
    """A column for other rows: for each the row where it was before, -1 (unknown) for a new one."""
    return np.where(source >= 0, np.append(column, np.nan)[source], np.nan)
