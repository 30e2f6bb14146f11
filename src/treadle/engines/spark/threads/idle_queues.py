"""Estimates the queue of a stage from the state of its thread: waiting for input, blocked on output, or running.

Spark counts nothing between the stages of a batch in Real-Time Mode. But if a thread waits for input, its queue is
empty, and if a thread is never seen waiting, its queue grows. This module knows the stack frames of Spark and Kafka,
not threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from treadle.jvm import JavaThread
from treadle.model import Floats, Ints

TAU = 1.5
"""Time constant of the average over samples, in seconds."""
LONGEST = 10_000.0
"""The highest estimate, in tuples."""


class Doing(IntEnum):
    """State of a stage's thread in a stack sample."""

    UNKNOWN = 0
    WAITING = 1
    """The thread waits for input: its queue is empty."""
    BLOCKED = 2
    """The thread is blocked on output: the queue of the next stage is full."""
    RUNNING = 3
    """The thread has input to work on, whether or not it has a core."""


def doing(thread: JavaThread) -> Doing:
    """Return the state of a task's thread, by the top of its stack."""
    frames = thread.stack
    if thread.state in ("WAITING", "TIMED_WAITING"):
        blocked = any("StreamingShuffleWriter" in frame or "kafka.clients.producer" in frame for frame in frames)
        return Doing.BLOCKED if blocked else Doing.WAITING
    if thread.state == "RUNNABLE" and any(frame.startswith(_POLLING) for frame in frames):
        return Doing.WAITING
    return Doing.RUNNING if thread.state else Doing.UNKNOWN


_POLLING = "org.apache.kafka.common.network.Selector."
"""The JVM reports a thread inside of `epoll_wait` as runnable."""


class Estimate:
    """The length of each instance's queue, estimated from the share of time in which its thread is idle.

    The idle share i is averaged with the time constant `TAU`: i <- i e^(-t/TAU) + (1 - e^(-t/TAU)) [waiting]. The
    kernel's counters give it exactly; a stack only shows whether the thread was idle for lack of input or because of
    its output. A queue with one server that is busy for the share 1 - i holds (1 - i) / i tuples on average (M/M/1),
    and that is the estimate. If a thread is never seen idle, i halves and the estimate doubles every second, up to
    `LONGEST`: the longer a thread is behind, the higher its estimate. If an instance upstream is blocked on its output,
    the queue of the instance downstream is full, so its estimate is `LONGEST` at once. Estimates are good for comparing
    stages, not for adding tuples up.
    """

    def __init__(self) -> None:
        self._idle = np.empty(0)
        self._time = math.nan

    def realign(self, source: Ints) -> None:
        """Switch to new instances: `source` has the previous index of each, -1 for a new one."""
        self._idle = realigned(self._idle, source)

    def update(
        self,
        time: float,
        found: Sequence[Doing],
        edges: tuple[Ints, Ints, Floats],
        idle: Floats | None = None,
    ) -> Floats:
        """Add a stack sample of all instances; return the estimate for each.

        `idle` is the share of time since the last sample in which each thread neither ran nor waited for a core, as the
        kernel counts it; it replaces the sampled state, except for blocked threads. NaN: unknown.
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
    """Return the column for new instances: `source` has the previous index of each, -1 (NaN) for a new one."""
    return np.where(source >= 0, np.append(column, np.nan)[source], np.nan)
