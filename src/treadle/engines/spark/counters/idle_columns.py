"""Estimated queues of instances without counters, from the share of time in which their main threads are idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from treadle.engines.spark.counters.cpu_times import ExclusiveThreads
from treadle.engines.spark.threads.idle_queues import Doing, Estimate, doing, realigned
from treadle.engines.spark.threads.places import Place, Rows
from treadle.jvm import JavaThread
from treadle.linux.thread_times import Times
from treadle.model import Floats, Ints, ThreadRef, Topology


class IdleColumns:
    """The estimated queue of each instance. Call `see` for each stack sample and `update` in each round."""

    def __init__(self) -> None:
        self.queue: Floats = np.empty(0)
        """By instance, the estimated queue in tuples; NaN: unknown."""
        self._estimate = Estimate()
        self._found: list[Doing] | None = None
        """By instance, the state of its main thread in the last stack sample; None after the sample was used."""
        self._at_dump: tuple[float, ExclusiveThreads, Floats] | None = None
        """At the last used sample: the time, the threads, and the CPU time plus run-queue wait of main threads."""

    def lay_out(self, source: Ints) -> bool:
        """Switch to new instances. True: the last stack sample was not used yet, so call `see` with it again."""
        self._estimate.realign(source)
        self.queue = realigned(self.queue, source)
        return self._found is not None

    def see(self, threads: Iterable[JavaThread], mains: Mapping[Place, ThreadRef], rows: Rows) -> None:
        """Note the state of each instance's main thread in a stack sample."""
        place_of = {ref.tid: place for place, ref in mains.items()}
        found: dict[Place | None, Doing] = {place_of[each.tid]: doing(each) for each in threads if each.tid in place_of}
        self._found = [found.get(place, Doing.UNKNOWN) for place in rows.places]

    def update(self, now: float, mains: Times, own: ExclusiveThreads, topology: Topology) -> None:
        """Update the estimates if there is a stack sample that was not used yet."""
        if self._found is not None:
            idle = self._idle(now, mains, own, len(topology))
            self.queue = self._estimate.update(now, self._found, topology.edges, idle)
            self._found = None

    def _idle(self, now: float, mains: Times, own: ExclusiveThreads, count: int) -> Floats:
        """Compute, by instance, the share of time since the last sample in which its main thread was idle, or NaN."""
        before = self._at_dump
        busy = mains.cpu_time + mains.run_wait
        self._at_dump = (now, own, busy)
        idle = np.full(count, np.nan)
        if before is not None and before[1] is own and now > before[0]:
            idle[own.rows[: len(busy)]] = np.clip(1.0 - (busy - before[2]) / (now - before[0]), 0.0, 1.0)
        return idle
