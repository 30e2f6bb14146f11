"""CPU time, and time spent waiting for a core, of the threads of each instance, as the kernel counts it.

Main threads of tasks are read together with the tasks' counters, since cost is the growth of CPU time per row. All
other threads are many and are read rarely.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

import numpy as np

from treadle.engines.spark.counters.handover import Counters
from treadle.engines.spark.threads.places import Rows
from treadle.linux.thread_times import Threads, ThreadTimes, Times
from treadle.model import Floats, Ints, Role, Topology

RARELY = 2.0
"""Seconds between two reads of threads that are no task's main thread."""


class ExclusiveThreads(NamedTuple):
    """The threads that serve one instance only, as (process, thread): main threads of tasks first, then all others."""

    mains: Threads
    others: Threads
    all: Threads
    rows: Ints
    tasks: Ints
    """Indices of the instances that are tasks of queries. (`rows` has the index of each thread's instance.)"""


class CpuTimes:
    """CPU time and run-queue wait by instance. `period`: seconds between two stack samples."""

    def __init__(self, period: float) -> None:
        self.own = _owned(Rows((), (), ()), Topology((), ()))
        self.cpu_factor: Floats = np.empty(0)
        """By instance, CPU seconds of all threads per CPU second that Spark counts: Spark leaves out Python workers."""
        self._period = period
        self._of_mains, self._of_others = ThreadTimes(), ThreadTimes()
        self._mains: tuple[ExclusiveThreads, Times] | None = None
        self._others: _Evened | None = None
        self._cpu, self._wait = Counters(), Counters()

    def lay_out(self, rows: Rows, topology: Topology, source: Ints) -> None:
        """Switch to new instances: `source` has the previous index of each, -1 for a new one."""
        for kept in (self._cpu, self._wait):
            kept.realign(source)
        self.own, self._others = _owned(rows, topology), None
        self.cpu_factor = np.ones(len(topology))

    def read_mains(self, *, anew: bool) -> Times:
        """Return the times of tasks' main threads, read again if `anew` or if these threads have changed."""
        if self._mains is None or self._mains[0] is not self.own or anew:
            self._mains = self.own, self._of_mains.sample(self.own.mains)
        return self._mains[1]

    def columns(self, mains: Times, of_batches: Floats, lately: Floats) -> tuple[Floats, Floats]:
        """Return CPU time and run-queue wait by instance.

        `of_batches` is the CPU time that Spark itself counts for queries in micro-batches, since their tasks may start
        and end between two rounds. `lately` is the same, but NaN while the counters are stale. Both are NaN for all
        other instances.
        """
        own, others = self.own, self._read_others(time.monotonic())
        counted = ~np.isnan(of_batches)
        mains_cpu = np.where(counted[own.rows[: len(own.mains)]], 0.0, mains.cpu_time)
        cpu = np.concatenate([mains_cpu, others.cpu_time])
        wait = np.concatenate([mains.run_wait, others.run_wait])
        used = self._cpu.add(own.all, cpu, own.rows)
        works = counted & (lately > 0.0)
        self.cpu_factor = 1.0 + np.divide(np.nan_to_num(used), lately, out=np.zeros(len(used)), where=works)
        return np.where(counted, np.nan_to_num(used) + lately, used), self._wait.add(own.all, wait, own.rows)

    def used(self) -> float:
        """Return the CPU seconds that all current threads of one instance only have used so far."""
        mains, others = self._of_mains.sample(self.own.mains), self._read_others(time.monotonic())
        return float(np.nansum(mains.cpu_time) + np.nansum(others.cpu_time))

    def close(self) -> None:
        self._of_mains.close()
        self._of_others.close()

    def _read_others(self, now: float) -> Times:
        if self._others is None:
            self._others = _Evened(RARELY)
        if self._others.is_due(now, 0.5 * self._period):
            self._others.add(now, self._of_others.sample(self.own.others))
        return self._others.at(now)


class _Evened:
    """Counters that are read rarely: the growth between two reads is spread evenly over the `period` after them."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._read: tuple[float, Times] | None = None
        self._before: Times | None = None

    def is_due(self, now: float, tolerance: float) -> bool:
        return self._read is None or now - self._read[0] > self._period - tolerance

    def add(self, now: float, times: Times) -> None:
        self._before = times if self._read is None else self.at(now)
        self._read = now, times

    def at(self, now: float) -> Times:
        assert self._read is not None
        assert self._before is not None
        (began, last), first = self._read, self._before
        part = min(1.0, (now - began) / self._period)
        return Times(*(np.where(np.isnan(a), b, a + part * (b - a)) for a, b in zip(first, last, strict=True)))


def _owned(rows: Rows, topology: Topology) -> ExclusiveThreads:
    """Select the threads that serve one instance only: a shared thread is charged to no instance."""
    count = Counter(topology.threads)
    own = [
        (rows.places[row] is None or thread.role is Role.HELPER, (thread.pid, thread.tid), row)
        for thread, row in zip(topology.threads, topology.thread_row.tolist(), strict=True)
        if count[thread] == 1
    ]
    own.sort(key=lambda item: item[0])
    mains = tuple(thread for other, thread, _ in own if not other)
    others = tuple(thread for other, thread, _ in own if other)
    row_of_each = np.array([row for _, _, row in own], dtype=np.int64)
    tasks = np.array([row for row, place in enumerate(rows.places) if place is not None], dtype=np.int64)
    return ExclusiveThreads(mains, others, mains + others, row_of_each, tasks)
