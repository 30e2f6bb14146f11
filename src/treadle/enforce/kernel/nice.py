"""Nice, the kernel's oldest lever: how large a thread's part of the CPU is against others at the same place.

It knows one system call, and how far it reaches: only within a cgroup or, where the kernel makes groups of sessions by
itself (autogroup), within one session. Lachesis section 5.3 turns it by a process per thread; this is one system call.
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
        """As `write`, and then `read`: whether the thread is still there is seen once for both."""
        self.write(target, value)
        assert isinstance(target, ThreadRef)
        try:
            return float(os.getpriority(os.PRIO_PROCESS, target.tid))
        except ProcessLookupError:
            gone(target)


def autogroup_enabled() -> bool:
    """Whether the kernel makes a group of its own of every session, so that nice acts only within it."""
    try:
        with open(AUTOGROUP, "rb") as file:
            return file.read().strip() == b"1"
    except OSError:  # built without it
        return False


def arenas(pids: Iterable[int]) -> dict[str, tuple[int, ...]]:
    """These processes by the place within which nice compares: a cgroup, a session where autogroup is on, or all.

    More than one key means that the nice of some says nothing against that of others: use groups there. Processes that
    have ended are left out.
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
    """The session whose group the process is in, by the number that the kernel has given to that."""
    with open(f"/proc/{pid}/autogroup") as file:
        name = file.read().partition(" ")[0].strip().removeprefix("/autogroup-")
    return f"session group {name}" if name else "the machine"
