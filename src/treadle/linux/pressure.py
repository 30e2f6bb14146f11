"""CPU load: the busy share of the usable cores from /proc/stat, and the share of time in which tasks wait, from PSI.

A kernel without PSI (before 4.20, or with `psi=0`) has only the busy share. The number of slots is adapted to these
values, which Haren section 8 names as future work.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from treadle.errors import EngineError

STAT = Path("/proc/stat")
PSI = Path("/proc/pressure/cpu")
ROOM = 1 << 16
"""Bytes read of /proc/stat: more than the lines of all cores have."""


class Load(NamedTuple):
    """The load since the last sample; NaN is unknown."""

    busy: float
    """The share of the usable cores' time that was busy, including time of other virtual machines (steal)."""
    stall: float
    """The share of time in which some runnable task had no core (PSI `some`)."""


class Pressure:
    """Samples the load. The busy share is that of `cores`, by default all usable ones; the stall share is of all cores.

    Each of the two files is kept open, so that a read is one system call.

    /proc/stat counts in hundredths of a second, so samples should be a tenth of a second apart at least.
    """

    def __init__(
        self,
        *,
        stat: Path = STAT,
        psi: Path = PSI,
        cores: Collection[int] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cores = frozenset(os.sched_getaffinity(0) if cores is None else cores)
        self._now = now
        self._prefixes = tuple(f"cpu{core}".encode() for core in self.cores)
        try:
            self._stat = _open(stat)
        except OSError as error:
            remedy = "use a fixed number of slots"
            raise EngineError(f"can't be read: {error.strerror}", where=str(stat), remedy=remedy) from error
        self._psi = -1
        with suppress(OSError):
            self._psi = _open(psi)
            os.pread(self._psi, 1, 0)  # with `psi=0` it can be opened, but not read
        self._before = self._read()
        self.source: Literal["psi", "stat"] = "stat" if math.isnan(self._before.stalled) else "psi"
        """Which shares are known: both if `psi`, only the busy share if `stat`."""

    def sample(self) -> Load:
        """Both shares since the last sample, at first since the creation of `Pressure`."""
        before, after = self._before, self._read()
        self._before = after
        busy = _share(after.worked - before.worked, after.passed - before.passed)
        return Load(busy, _share(after.stalled - before.stalled, after.time - before.time))

    def close(self) -> None:
        """Close the files; all later samples are unknown."""
        for file in (self._stat, self._psi):
            if file >= 0:
                os.close(file)
        self._stat = self._psi = -1

    def _read(self) -> _Counters:
        worked, passed = self._core_times()
        return _Counters(self._now(), worked, passed, self._stalled())

    def _core_times(self) -> tuple[float, float]:
        """Busy ticks of the cores, and all ticks."""
        worked = passed = 0
        try:
            for line in os.pread(self._stat, ROOM, 0).splitlines():
                if not line.startswith(b"cpu"):
                    break
                name, *ticks = line.split()
                if name in self._prefixes:
                    times = [int(tick) for tick in ticks[:8]]  # the last two, guest times, are part of the user time
                    passed += sum(times)
                    worked += sum(times) - times[3] - times[4]  # idle, iowait
        except (OSError, ValueError, IndexError):
            return math.nan, math.nan
        return worked, passed

    def _stalled(self) -> float:
        """Total seconds in which some task waited for a core."""
        with suppress(OSError, ValueError):
            for line in os.pread(self._psi, 512, 0).splitlines():
                if line.startswith(b"some"):
                    return int(line.rpartition(b"total=")[2]) / 1e6
        return math.nan


class _Counters(NamedTuple):
    time: float
    worked: float
    passed: float
    stalled: float


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _share(part: float, whole: float) -> float:
    """A share from 0 to 1; clamped, since iowait may shrink and two clocks differ. NaN if no time has passed."""
    if math.isnan(part) or not whole > 0:
        return math.nan
    return min(max(part / whole, 0.0), 1.0)
