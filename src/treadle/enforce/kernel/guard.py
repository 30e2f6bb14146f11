"""Whether a thread is still the one that was meant, and what may be done to threads at all.

It knows /proc and nothing of any knob. A thread id alone is not enough: the kernel hands it out again, so a thread is
meant by its id, its process and its start time together.
"""

from __future__ import annotations

import os
from typing import NoReturn

from treadle.enforce.knob import Target
from treadle.errors import ConfigError, RightsError, TargetGone
from treadle.model import Role, ThreadRef

CAP_SYS_NICE = 23


def alive(target: Target) -> ThreadRef:
    """The thread, if it still runs; `TargetGone` if it has ended, or if its id belongs to another thread by now.

    One file is opened, read and closed. What remains is the time from here to the system call that follows, some
    microseconds: in that time the thread would have to end and the kernel to go once around all of its thread ids.
    """
    if isinstance(target, str):
        raise ConfigError(f"'{target}' is no thread", remedy="use a knob that is for groups or instances")
    state, started = _look(target.pid, target.tid)
    if started != target.start_time or state in b"ZXx":
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
    return ThreadRef(tid, pid, _look(pid, tid)[1], role, name)


def has_sys_nice() -> bool:
    """Whether this process has the capability that all of scheduling asks for."""
    with open("/proc/thread-self/status", "rb") as file:
        for line in file:
            if line.startswith(b"CapEff:"):
                return bool(int(line.split()[1], 16) >> CAP_SYS_NICE & 1)
    return False


def _look(pid: int, tid: int) -> tuple[bytes, int]:
    """State and start time (fields 3 and 22 of proc_pid_stat(5)) of a thread of that very process."""
    try:
        file = os.open(f"/proc/{pid}/task/{tid}/stat", os.O_RDONLY)
        try:
            text = os.read(file, 1024)
        finally:
            os.close(file)
    except (FileNotFoundError, ProcessLookupError):
        gone(ThreadRef(tid, pid))
    except PermissionError as error:
        remedy = "run as its user or as root"
        raise RightsError("can't be looked at", where=f"thread {tid} of process {pid}", remedy=remedy) from error
    fields = text[text.rindex(b")") + 2 :].split(b" ", 20)
    return fields[0], int(fields[19])
