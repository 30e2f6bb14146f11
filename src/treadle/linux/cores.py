"""CPU time that some processes and their descendants have used, and CPU time of all other processes of the machine.

It reads /proc. These are cpu(tm), here with all processes that are not ours, and tCpu(tm) of Stream-Economics, Alg. 1,
line 2.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from treadle.linux import stat
from treadle.linux.pressure import Pressure


class Used(NamedTuple):
    """CPU seconds since `Cores` was made: of the given processes and their descendants, and of all other processes."""

    ours: float
    others: float


class Cores:
    """Counts CPU time from its creation on. The processes that count as ours, with descendants, are set by `keep`."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.count = len(os.sched_getaffinity(0))
        self._pressure = Pressure()
        self._time = time.monotonic()
        self._all = 0.0
        self._last: dict[int, float] = {}
        self._ours = 0.0
        self.keep(pids)

    def keep(self, pids: Iterable[int]) -> None:
        """From now on count these processes as ours, and no others. What was counted before stays counted."""
        self._last = {pid: self._last[pid] if pid in self._last else tree_seconds(pid) for pid in pids}

    def read(self) -> Used:
        """Return the CPU time so far. Call this about every second.

        The CPU time of others is the busy time of the usable cores less ours.
        """
        now = time.monotonic()
        busy = self._pressure.sample().busy
        self._all += (0.0 if busy != busy else busy) * self.count * (now - self._time)  # NaN: unknown
        self._time = now
        for pid, before in self._last.items():
            self._last[pid] = used = tree_seconds(pid)
            self._ours += max(0.0, used - before)
        return Used(self._ours, max(self._all - self._ours, 0.0))

    def close(self) -> None:
        self._pressure.close()


def tree_seconds(pid: int) -> float:
    """CPU seconds of a process and its descendants. Those of an ended child are counted by the parent that waited."""
    total, left = 0.0, [pid]
    while left:
        each = left.pop()
        with suppress(OSError):  # the process has just ended
            total += stat.tree_times(stat.read(each))
            left += _children(each)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found
