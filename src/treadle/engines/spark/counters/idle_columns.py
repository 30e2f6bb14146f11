"""The queues of rows that nobody counts, estimated from how often their main threads have nothing to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from treadle.engines.spark.counters.cpu_times import Own
from treadle.engines.spark.threads.idle_queues import Doing, Estimate, doing, realigned
from treadle.engines.spark.threads.places import Place, Rows
from treadle.jvm import JavaThread
from treadle.linux.thread_times import Times
from treadle.model import Floats, Ints, ThreadRef, Topology


class IdleColumns:
    """Of the rows of one topology after another."""

    def __init__(self) -> None:
        self.queue: Floats = np.empty(0)
        """By row an estimate of what waits."""
        self._estimate = Estimate()
        self._found: list[Doing] | None = None
        """By row what its main thread was last found doing; None if that has been counted already."""
        self._at_dump: tuple[float, Own, Floats] | None = None
        """When it was last seen what tasks do: what the mains had used and waited for by then."""

    def lay_out(self, source: Ints) -> bool:
        """There are other rows now. True if what was last seen of threads was not counted, and is to be seen anew."""
        self._estimate.realign(source)
        self.queue = realigned(self.queue, source)
        return self._found is not None

    def see(self, threads: Iterable[JavaThread], mains: Mapping[Place, ThreadRef], rows: Rows) -> None:
        """What the main thread of each row was found doing."""
        place_of = {ref.tid: place for place, ref in mains.items()}
        found: dict[Place | None, Doing] = {place_of[each.tid]: doing(each) for each in threads if each.tid in place_of}
        self._found = [found.get(place, Doing.UNKNOWN) for place in rows.places]

    def update(self, now: float, mains: Times, own: Own, topology: Topology) -> None:
        """Count what was seen, if that was not done yet."""
        if self._found is not None:
            idle = self._idle(now, mains, own, len(topology))
            self.queue = self._estimate.update(now, self._found, topology.edges, idle)
            self._found = None

    def _idle(self, now: float, mains: Times, own: Own, count: int) -> Floats:
        """Of each row with a main thread the part of the time since the last dump in which that had nothing to do."""
        before = self._at_dump
        busy = mains.cpu_time + mains.run_wait
        self._at_dump = (now, own, busy)
        idle = np.full(count, np.nan)
        if before is not None and before[1] is own and now > before[0]:
            idle[own.rows[: len(busy)]] = np.clip(1.0 - (busy - before[2]) / (now - before[0]), 0.0, 1.0)
        return idle
