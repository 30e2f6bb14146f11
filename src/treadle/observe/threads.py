"""What the kernel counts for each thread: CPU time, time spent waiting for a core, and switches, from /proc.

It knows threads by number and nothing of what they run. The kernel books a thread's time when it leaves or gets a core
and at each tick, so a figure may be some milliseconds behind. A thread that has ended is NaN everywhere.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from treadle.errors import EngineError, RightsError, TargetGone
from treadle.model import Floats

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
        with open(f"/proc/{pid}/task/{tid}/stat", "rb", buffering=0) as file:
            text = file.read(_ROOM)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetGone("has ended", where=_where(pid, tid)) from error
    return int(text[text.rindex(b")") + 2 :].split(None, 20)[19])  # a name may hold anything, also brackets


class ThreadTimes:
    """Samples many threads at once. Each one's file is opened once, kept, and closed when it is no longer asked for.

    An open file belongs to the thread it was opened for: when that has ended, a new thread with its number is not
    mistaken for it, but unknown for one round.
    """

    def __init__(self) -> None:
        if not os.path.exists("/proc/self/schedstat"):
            remedy = "use a kernel with CONFIG_SCHED_INFO, as those of all distributions are"
            raise EngineError("this kernel does not count what threads wait for", where="schedstat", remedy=remedy)
        self._times = _Files("schedstat", 128)
        self._status = _Files("status", _ROOM)

    def sample(self, threads: Threads) -> Times:
        """CPU time, run-queue wait and switches of these threads."""
        texts = self._times.read(threads, _UNKNOWN)
        table = np.array(list(map(int, b" ".join(texts).split())), dtype=np.float64).reshape(len(threads), 3)
        table[table < 0.0] = np.nan
        return Times(table[:, 0] * 1e-9, table[:, 1] * 1e-9, table[:, 2].copy())

    def switches(self, threads: Threads) -> Switches:
        """Voluntary and involuntary switches; dearer than `sample`, since they stand in a long file."""
        table = np.full((len(threads), 2), np.nan)
        for row, text in enumerate(self._status.read(threads, b"")):
            if text:
                # The last two lines: voluntary_ctxt_switches: 1\nnonvoluntary_ctxt_switches: 2
                words = text[text.rindex(b"\nvoluntary") :].split()
                table[row] = float(words[1]), float(words[3])
        return Switches(table[:, 0].copy(), table[:, 1].copy())

    def close(self) -> None:
        """Close all files; a later sample opens them again."""
        self._times.close()
        self._status.close()


class _Files:
    """One file of each thread, kept open."""

    def __init__(self, name: str, room: int) -> None:
        self._name = name
        self._room = room  # the smaller, the quicker
        self._threads: Threads = ()
        self._open: dict[tuple[int, int], int] = {}

    def read(self, threads: Threads, otherwise: bytes) -> list[bytes]:
        """The contents for each thread; `otherwise` for one that has ended."""
        if threads != self._threads:
            self._close(self._open.keys() - set(threads))
            self._threads = threads
        texts: list[bytes] = []
        pread, kept, room = os.pread, self._open, self._room
        for thread in threads:
            try:
                texts.append(pread(kept[thread], room, 0))
            except KeyError:
                texts.append(self._first(thread) or otherwise)
            except ProcessLookupError:
                self._close((thread,))
                texts.append(otherwise)
        return texts

    def close(self) -> None:
        self._close(tuple(self._open))

    def _first(self, thread: tuple[int, int]) -> bytes:
        pid, tid = thread
        try:
            file = os.open(f"/proc/{pid}/task/{tid}/{self._name}", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            return b""
        except PermissionError as error:
            remedy = "run as root, or mount /proc without hidepid"
            raise RightsError("its times can't be read", where=_where(pid, tid), remedy=remedy) from error
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            remedy = f"allow more than {len(self._open)} open files (ulimit -n)"
            raise EngineError("too many open files", where=_where(pid, tid), remedy=remedy) from error
        self._open[thread] = file
        try:
            return os.pread(file, self._room, 0)
        except ProcessLookupError:
            self._close((thread,))
            return b""

    def _close(self, threads: Iterable[tuple[int, int]]) -> None:
        for thread in threads:
            os.close(self._open.pop(thread))


def _where(pid: int, tid: int) -> str:
    return f"process {pid}, thread {tid}"
