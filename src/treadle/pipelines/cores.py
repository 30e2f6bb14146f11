"""The cores' time that Spark's processes have used on this machine, Python workers included, and that others have.

It knows process numbers and /proc. Stream-Economics, Alg. 1 line 2: cpu(tm) with all that is not ours, and tCpu(tm).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from treadle.enforce.elastic import usable_cores
from treadle.observe.pressure import Pressure

TICK = 1.0 / os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """Core seconds since it was first looked."""

    ours: float
    others: float


class Cores:
    """Counts from when it is made, for a process and all that it has started."""

    def __init__(self, pid: int) -> None:
        self.count = usable_cores()
        self._pid = pid
        self._pressure = Pressure()
        self._time = time.monotonic()
        self._all = 0.0
        self._before = tree_seconds(pid)

    def read(self) -> Used:
        """Call it every second or so; what others have used is what the cores did without ours."""
        now = time.monotonic()
        busy = self._pressure.sample().busy
        self._all += (0.0 if busy != busy else busy) * self.count * (now - self._time)  # NaN: it is not known
        self._time = now
        ours = tree_seconds(self._pid) - self._before
        return Used(ours, max(self._all - ours, 0.0))

    def close(self) -> None:
        self._pressure.close()


def tree_seconds(pid: int) -> float:
    """Of the CPU, by a process, its children and theirs; those that have ended count with who waited for them."""
    total, left = 0, [pid]
    while left:
        each = left.pop()
        with suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{each}/stat").read_bytes().rpartition(b")")[2].split()
            total += sum(int(field) for field in fields[11:15])
            left += _children(each)
    return total * TICK


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found
