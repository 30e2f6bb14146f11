"""Whether a thread is still the one that was meant, and what may be done to threads at all.

It knows /proc and nothing of any knob. A thread id alone is not enough: the kernel hands it out again, so a thread is
meant by its id, its process and its start time together.
"""

from __future__ import annotations

import os
import threading
from typing import NoReturn

from treadle.enforce.knob import Target
from treadle.errors import ConfigError, RightsError, TargetGone
from treadle.model import Role, ThreadRef

CAP_SYS_NICE = 23
_ENDED = (b"Z", b"X", b"x")
_UP_TO_STATE = 128
"""Bytes of a `stat`: a name has at most 64."""


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
    """Files of the threads that were last asked for: to open one costs several times what it costs to read it.

    An open one belongs to the thread it was opened for. Once that has ended it can't be read, whoever has its id.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._files: dict[tuple[int, int, int], int] = {}
        self._lock = threading.RLock()  # nobody may close what another reads; a signal may break in to put back

    def runs(self, thread: ThreadRef) -> bool:
        key = (thread.pid, thread.tid, thread.start_time)
        with self._lock:
            file = self._files.get(key)
            if file is None:
                return self._first(key)
            try:
                if _state(os.pread(file, _UP_TO_STATE, 0)) not in _ENDED:
                    return True
            except ProcessLookupError:
                pass
            self._close(key)
            return False

    def close(self) -> None:
        with self._lock:
            for key in tuple(self._files):
                self._close(key)

    def _first(self, key: tuple[int, int, int]) -> bool:
        pid, tid, start_time = key
        file = _open(pid, tid)
        try:
            text = _read(file, pid, tid)
            if _started(text) != start_time or _state(text) in _ENDED:
                os.close(file)
                return False
        except BaseException:
            os.close(file)
            raise
        if len(self._files) >= self._most:
            self._close(next(iter(self._files)))
        self._files[key] = file
        return True

    def _close(self, key: tuple[int, int, int]) -> None:
        os.close(self._files.pop(key))


_OPEN = OpenFiles(256)


def _start_time(pid: int, tid: int) -> int:
    """Of a thread of that very process."""
    file = _open(pid, tid)
    try:
        return _started(_read(file, pid, tid))
    finally:
        os.close(file)


def _open(pid: int, tid: int) -> int:
    try:
        return os.open(f"/proc/{pid}/task/{tid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        gone(ThreadRef(tid, pid))
    except PermissionError as error:
        remedy = "run as its user or as root"
        raise RightsError("can't be looked at", where=f"thread {tid} of process {pid}", remedy=remedy) from error


def _read(file: int, pid: int, tid: int) -> bytes:
    try:
        return os.pread(file, 1024, 0)
    except ProcessLookupError:
        gone(ThreadRef(tid, pid))


def _state(text: bytes) -> bytes:
    """Field 3 of proc_pid_stat(5), which comes after a name that may hold anything."""
    at = text.rindex(b")") + 2
    return text[at : at + 1]


def _started(text: bytes) -> int:
    """Field 22."""
    return int(text[text.rindex(b")") + 2 :].split(b" ", 20)[19])
