"""Nice: the size of a thread's CPU share relative to the threads that it competes with.

The kernel compares nice only within a cgroup or, with autogroup (a group for each session), within a session.
Lachesis section 5.3 starts a process for each change of nice; here it is one system call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from treadle.enforce.kernel.cgroup import cpu_group, find_mount
from treadle.enforce.kernel.guard import alive, called, gone
from treadle.enforce.kernel.numbers import whole
from treadle.enforce.knob import Per, Target, Value
from treadle.errors import RightsError
from treadle.model import ThreadRef

REMEDY = "run as root or with CAP_SYS_NICE, or raise the RLIMIT_NICE of that process; without it nice only goes up"
AUTOGROUP = "/proc/sys/kernel/sched_autogroup_enabled"


class NiceKnob:
    """The knob `nice`: -20, the most urgent, to 19."""

    name = "nice"
    per: Per = "thread"
    options: Mapping[str, Any] = {}

    def read(self, target: Target) -> Value:
        thread = alive(target)
        try:
            return float(os.getpriority(os.PRIO_PROCESS, thread.tid))
        except ProcessLookupError:
            gone(thread)

    def write(self, target: Target, value: Value) -> None:
        nice = whole(value, -20, 19, self.name)
        thread = alive(target)
        try:
            os.setpriority(os.PRIO_PROCESS, thread.tid, nice)
        except ProcessLookupError:
            gone(thread)
        except PermissionError as error:
            raise RightsError(f"nice can't be set to {nice}", where=called(thread), remedy=REMEDY) from error

    def write_and_read(self, target: Target, value: Value) -> Value:
        """Write, then read. This is faster than two calls, since it checks only once that the thread is alive."""
        self.write(target, value)
        assert isinstance(target, ThreadRef)
        try:
            return float(os.getpriority(os.PRIO_PROCESS, target.tid))
        except ProcessLookupError:
            gone(target)


def autogroup_enabled() -> bool:
    """Whether autogroup is on: the kernel then makes a group of each session, and nice acts only within a session."""
    try:
        with open(AUTOGROUP, "rb") as file:
            return file.read().strip() == b"1"
    except OSError:  # a kernel that is built without autogroup
        return False


def arenas(pids: Iterable[int]) -> dict[str, tuple[int, ...]]:
    """Processes by the scope within which the kernel compares their nice.

    A scope is a cgroup, a session if autogroup is on, or the machine. Between processes of different scopes nice has no
    effect, so use groups there. Processes that have ended are left out.
    """
    enabled, mount = autogroup_enabled(), find_mount()
    found: dict[str, tuple[int, ...]] = {}
    for pid in pids:
        try:
            group = "/" if mount is None else cpu_group(pid, mount)
            arena = f"cgroup {group}"
            if group == "/":
                arena = _session(pid) if enabled else "the machine"
        except OSError:
            continue
        found[arena] = (*found.get(arena, ()), pid)
    return found


def _session(pid: int) -> str:
    """The autogroup of a process, named by the kernel's number of it; 'the machine' if the process has none."""
    with open(f"/proc/{pid}/autogroup") as file:
        name = file.read().partition(" ")[0].strip().removeprefix("/autogroup-")
    return f"session group {name}" if name else "the machine"
