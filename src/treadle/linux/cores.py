"""The cores' time that some processes have used on this machine, with all that they started, and that others have.

It knows process numbers and /proc. Stream-Economics, Alg. 1 line 2: cpu(tm) with all that is not ours, and tCpu(tm).
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
    """Core seconds since it was first looked."""

    ours: float
    others: float


class Cores:
    """Counts from when it is made, for processes and all that they have started. Others may come."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.count = len(os.sched_getaffinity(0))
        self._pressure = Pressure()
        self._time = time.monotonic()
        self._all = 0.0
        self._last: dict[int, float] = {}
        self._ours = 0.0
        self.keep(pids)

    def keep(self, pids: Iterable[int]) -> None:
        """These are the processes from now on."""
        self._last = {pid: self._last[pid] if pid in self._last else tree_seconds(pid) for pid in pids}

    def read(self) -> Used:
        """Call it every second or so; what others have used is what the cores did without ours."""
        now = time.monotonic()
        busy = self._pressure.sample().busy
        self._all += (0.0 if busy != busy else busy) * self.count * (now - self._time)  # NaN: it is not known
        self._time = now
        for pid, before in self._last.items():
            self._last[pid] = used = tree_seconds(pid)
            self._ours += max(0.0, used - before)
        return Used(self._ours, max(self._all - self._ours, 0.0))

    def close(self) -> None:
        self._pressure.close()


def tree_seconds(pid: int) -> float:
    """Of the CPU, by a process, its children and theirs; those that have ended count with who waited for them."""
    total, left = 0.0, [pid]
    while left:
        each = left.pop()
        with suppress(OSError):  # it has just ended
            total += stat.tree_times(stat.read(each))
            left += _children(each)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found
