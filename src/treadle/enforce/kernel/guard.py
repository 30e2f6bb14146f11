"""Check that a thread id still belongs to the same thread, and which scheduling rights this process has.

It reads /proc and knows no knob. A thread id alone is not enough, since the kernel uses ids again. So a thread is
identified by its id, its process and its start time together.
"""

from __future__ import annotations

import os
from typing import NoReturn

from treadle.enforce.knob import Target
from treadle.errors import ConfigError, RightsError, TargetGone
from treadle.linux import stat
from treadle.linux.files.open_files import KeptFiles, open_file
from treadle.model import Role, ThreadRef

CAP_SYS_NICE = 23
_ENDED = b"0 "
"""How the `statm` of an ended thread begins, zombies included: such a thread has no memory."""
_ROOM = 1024
"""Number of bytes to read: more than any `stat` or `statm` file has."""


def alive(target: Target) -> ThreadRef:
    """Return the thread if it still runs; `TargetGone` if it has ended, or if its id now belongs to another thread.

    A race of some microseconds remains until the system call that follows: within this time the thread would have to
    end and the kernel would have to use all other thread ids.
    """
    if isinstance(target, str):
        raise ConfigError(f"'{target}' is not a thread", remedy="use a knob that is for groups or instances")
    if not _OPEN.runs(target):
        gone(target)
    return target


def gone(thread: ThreadRef) -> NoReturn:
    """Raise `TargetGone` for a thread that has ended."""
    raise TargetGone(f"{called(thread)} has ended")


def called(thread: ThreadRef) -> str:
    """How error messages name a thread."""
    return f"thread {thread.tid} of process {thread.pid}"


def thread_ref(tid: int, pid: int | None = None, *, role: Role = Role.MAIN, name: str = "") -> ThreadRef:
    """A reference to the thread that has this id now; without `pid`, a thread of this process."""
    pid = os.getpid() if pid is None else pid
    return ThreadRef(tid, pid, _start_time(pid, tid), role, name)


def has_sys_nice() -> bool:
    """Whether the calling thread has CAP_SYS_NICE, which most scheduling changes need."""
    with open("/proc/thread-self/status", "rb") as file:
        for line in file:
            if line.startswith(b"CapEff:"):
                return bool(int(line.split()[1], 16) >> CAP_SYS_NICE & 1)
    return False


class OpenFiles:
    """Open `statm` files of at most `most` recently checked threads, see `KeptFiles`.

    Reading `statm` takes a third of the time of `stat`. An open file always refers to the thread that it was opened
    for, so the start time is compared only once, when the file is opened.
    """

    def __init__(self, most: int) -> None:
        self._kept = KeptFiles("statm", _ROOM, most=most)

    def runs(self, thread: ThreadRef) -> bool:
        """Whether exactly this thread exists and has not ended."""
        key = (thread.pid, thread.tid, thread.start_time)

        def is_meant(text: bytes) -> bool:
            return not text.startswith(_ENDED) and _start_time(thread.pid, thread.tid) == thread.start_time

        kept = self._kept
        with kept.lock:
            known = key in kept
            try:
                text = kept.read(key, is_meant)
            except OSError as error:
                _refused(error, thread.pid, thread.tid)
            if not known:
                return key in kept or is_meant(text)
            if text.startswith(_ENDED):
                kept.drop(key)
                return False
            return True

    def close(self) -> None:
        self._kept.close()


_OPEN = OpenFiles(1 << 13)
"""Keeps files of more threads than an application has: to open one for each write costs several times the write."""


def _start_time(pid: int, tid: int) -> int:
    """The start time of a thread of the process."""
    try:
        file = open_file(f"/proc/{pid}/task/{tid}/stat")
        try:
            return stat.start_time(os.pread(file, _ROOM, 0))
        finally:
            os.close(file)
    except OSError as error:
        _refused(error, pid, tid)


def _refused(error: OSError, pid: int, tid: int) -> NoReturn:
    """Raise a Treadle error for an OSError."""
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        gone(ThreadRef(tid, pid))
    if isinstance(error, PermissionError):
        remedy = "run as its user or as root"
        raise RightsError("can't be read", where=f"thread {tid} of process {pid}", remedy=remedy) from error
    raise error
