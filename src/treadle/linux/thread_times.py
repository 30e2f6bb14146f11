"""The kernel's counters of each thread, from /proc: CPU time, time spent waiting for a core, and context switches.

The kernel updates a thread's times when the thread gets or leaves a core and at each tick, so a value may be some
milliseconds old. An ended thread has NaN in all columns.
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
"""(process id, thread id) of each thread."""

_ROOM = 4096
"""Bytes read at once: more than a `status` file has."""
_UNKNOWN = b"-1 -1 -1"


class Times(NamedTuple):
    """Counters since the start of each thread, one row per thread."""

    cpu_time: Floats
    """Seconds on a core."""
    run_wait: Floats
    """Seconds in which the thread was runnable, but had no core."""
    switches: Floats
    """How often the thread got a core."""


class Switches(NamedTuple):
    """How often each thread left its core, one row per thread."""

    voluntary: Floats
    involuntary: Floats


def start_time(pid: int, tid: int) -> int:
    """The start time of a thread, in clock ticks since boot: together with the id it identifies a thread."""
    try:
        return int(stat.read(pid, tid, stat.STARTED)[stat.STARTED])
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetGone("has ended", where=_where(pid, tid)) from error


class ThreadTimes:
    """Samples many threads at once. Files of threads that are not in the last sample are closed.

    If a thread has ended and a new one has its id, the new thread is NaN in one sample. But if there were too many open
    files to keep the old thread's file open, the new thread is read as if it were the old one.
    """

    def __init__(self) -> None:
        if not os.path.exists("/proc/self/schedstat"):
            remedy = "use a kernel with CONFIG_SCHED_INFO, as those of all distributions are"
            raise EngineError(
                "this kernel does not record how long threads wait for a CPU", where="schedstat", remedy=remedy
            )
        self._times = KeptFiles("schedstat", 128)
        self._status = KeptFiles("status", _ROOM)

    def sample(self, threads: Threads) -> Times:
        """CPU time, run-queue wait and switches of these threads."""
        texts = _read(self._times, threads, _UNKNOWN)
        table = np.array(list(map(int, b" ".join(texts).split())), dtype=np.float64).reshape(len(threads), 3)
        table[table < 0.0] = np.nan
        return Times(table[:, 0] * 1e-9, table[:, 1] * 1e-9, table[:, 2].copy())

    def switches(self, threads: Threads) -> Switches:
        """Voluntary and involuntary switches; more expensive than `sample`, since they are in a longer file."""
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
