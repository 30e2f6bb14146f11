"""Whether a thread is still the one that was meant, and what may be done to threads at all.

It knows /proc and nothing of any knob. A thread id alone is not enough: the kernel hands it out again, so a thread is
meant by its id, its process and its start time together.
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
"""How the `statm` of a thread begins that has ended, also if nobody has waited for it yet: it has no memory."""
_ROOM = 1024
"""Bytes: more than a `stat` has."""


def alive(target: Target) -> ThreadRef:
    """The thread, if it still runs; `TargetGone` if it has ended, or if its id belongs to another thread by now.

    What remains is the time from here to the system call that follows, some microseconds: in that time the thread would
    have to end and the kernel to go once around all of its thread ids.
    """
    if isinstance(target, str):
        raise ConfigError(f"'{target}' is no thread", remedy="use a knob that is for groups or instances")
    if not _OPEN.runs(target):
        gone(target)
    return target


def gone(thread: ThreadRef) -> NoReturn:
    """It has ended."""
    raise TargetGone(f"{called(thread)} has ended")


def called(thread: ThreadRef) -> str:
    """Which one it is, for people."""
    return f"thread {thread.tid} of process {thread.pid}"


def thread_ref(tid: int, pid: int | None = None, *, role: Role = Role.MAIN, name: str = "") -> ThreadRef:
    """The thread that has this id now; without `pid` one of this process."""
    pid = os.getpid() if pid is None else pid
    return ThreadRef(tid, pid, _start_time(pid, tid), role, name)


def has_sys_nice() -> bool:
    """Whether this process has the capability that all of scheduling asks for."""
    with open("/proc/thread-self/status", "rb") as file:
        for line in file:
            if line.startswith(b"CapEff:"):
                return bool(int(line.split()[1], 16) >> CAP_SYS_NICE & 1)
    return False


class OpenFiles:
    """Files of the threads that were last asked for, at most so many: see `KeptFiles`.

    That is `statm`, which is read in a third of the time of `stat`. It belongs to the thread that it was opened for,
    and the start time, which is compared once it is open, tells whether that is the one that is meant.
    """

    def __init__(self, most: int) -> None:
        self._kept = KeptFiles("statm", _ROOM, most=most)

    def runs(self, thread: ThreadRef) -> bool:
        """Whether it is the very thread, and has not ended."""
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
"""More threads than one application has: a file that is opened anew for each write costs several times the write."""


def _start_time(pid: int, tid: int) -> int:
    """Of a thread of that very process."""
    try:
        file = open_file(f"/proc/{pid}/task/{tid}/stat")
        try:
            return stat.start_time(os.pread(file, _ROOM, 0))
        finally:
            os.close(file)
    except OSError as error:
        _refused(error, pid, tid)


def _refused(error: OSError, pid: int, tid: int) -> NoReturn:
    """Say it in our own words."""
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        gone(ThreadRef(tid, pid))
    if isinstance(error, PermissionError):
        remedy = "run as its user or as root"
        raise RightsError("can't be read", where=f"thread {tid} of process {pid}", remedy=remedy) from error
    raise error
