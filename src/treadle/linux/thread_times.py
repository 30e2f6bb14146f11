"""What the kernel counts for each thread: CPU time, time spent waiting for a core, and switches, from /proc.

It knows threads by number and nothing of what they run. The kernel books a thread's time when it leaves or gets a core
and at each tick, so a figure may be some milliseconds behind. A thread that has ended is NaN everywhere.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.errors import EngineError, RightsError, TargetGone
from treadle.linux import stat
from treadle.linux.files.open_files import KeptFiles

Floats = NDArray[np.float64]
Threads = tuple[tuple[int, int], ...]
"""(process id, thread id) of each."""

_ROOM = 4096
"""Bytes read at once: more than a `stat` or `status` has."""
_UNKNOWN = b"-1 -1 -1"


class Times(NamedTuple):
    """Counters since each thread began, one row a thread."""

    cpu_time: Floats
    """Seconds on a core."""
    run_wait: Floats
    """Seconds in which it could have run, but had no core."""
    switches: Floats
    """How often it was given a core."""


class Switches(NamedTuple):
    """How often each thread gave its core up, one row a thread."""

    voluntary: Floats
    involuntary: Floats


def start_time(pid: int, tid: int) -> int:
    """When a thread began, in clock ticks since boot: with its id, what tells it from any other thread."""
    try:
        return int(stat.read(pid, tid, stat.STARTED)[stat.STARTED])
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetGone("has ended", where=_where(pid, tid)) from error


class ThreadTimes:
    """Samples many threads at once. Files of threads that are no longer asked for are closed.

    Where a thread has ended and another one has got its number, the new one is unknown for one round; only while so
    many files are open that no more can be kept it is read as if it were the old one.
    """

    def __init__(self) -> None:
        if not os.path.exists("/proc/self/schedstat"):
            remedy = "use a kernel with CONFIG_SCHED_INFO, as those of all distributions are"
            raise EngineError("this kernel does not count what threads wait for", where="schedstat", remedy=remedy)
        self._times = KeptFiles("schedstat", 128)
        self._status = KeptFiles("status", _ROOM)

    def sample(self, threads: Threads) -> Times:
        """CPU time, run-queue wait and switches of these threads."""
        texts = _read(self._times, threads, _UNKNOWN)
        table = np.array(list(map(int, b" ".join(texts).split())), dtype=np.float64).reshape(len(threads), 3)
        table[table < 0.0] = np.nan
        return Times(table[:, 0] * 1e-9, table[:, 1] * 1e-9, table[:, 2].copy())

    def switches(self, threads: Threads) -> Switches:
        """Voluntary and involuntary switches; dearer than `sample`, since they stand in a long file."""
        table = np.full((len(threads), 2), np.nan)
        for row, text in enumerate(_read(self._status, threads, b"")):
            if text:
                # The last two lines: voluntary_ctxt_switches: 1\nnonvoluntary_ctxt_switches: 2
                words = text[text.rindex(b"\nvoluntary") :].split()
                table[row] = float(words[1]), float(words[3])
        return Switches(table[:, 0].copy(), table[:, 1].copy())

    def close(self) -> None:
        """Close all files; a later sample opens them again."""
        self._times.close()
        self._status.close()


def _read(files: KeptFiles, threads: Threads, otherwise: bytes) -> list[bytes]:
    try:
        return files.read_all(threads, otherwise)
    except PermissionError as error:
        remedy = "run as root, or mount /proc without hidepid"
        raise RightsError("the times of its threads can't be read", where=error.filename, remedy=remedy) from error
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        remedy = "allow more open files (ulimit -n)"
        raise EngineError("too many open files", where=error.filename, remedy=remedy) from error


def _where(pid: int, tid: int) -> str:
    return f"process {pid}, thread {tid}"
