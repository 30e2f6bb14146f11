"""CPU time that some processes and their descendants have used, and CPU time of all other processes of the machine.

It reads /proc. Stream-Economics, Alg. 1 line 2: cpu(tm) including all processes that are not ours, and tCpu(tm).
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
    """Core seconds since `Cores` was made."""

    ours: float
    others: float


class Cores:
    """Counts the CPU time of some processes and their descendants since its creation; `keep` sets other processes."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.count = len(os.sched_getaffinity(0))
        self._pressure = Pressure()
        self._time = time.monotonic()
        self._all = 0.0
        self._last: dict[int, float] = {}
        self._ours = 0.0
        self.keep(pids)

    def keep(self, pids: Iterable[int]) -> None:
        """Count these processes from now on."""
        self._last = {pid: self._last[pid] if pid in self._last else tree_seconds(pid) for pid in pids}

    def read(self) -> Used:
        """Call it about every second. CPU time of others is the busy time of the cores without ours."""
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
    """CPU seconds of a process and its descendants; an ended one counts with the process that waited for it."""
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
