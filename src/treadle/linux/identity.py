"""The user and groups of another process, and how to act with exactly its rights.

An action for another user or group runs in a thread that takes the effective ids of the other process, drops all
capabilities and ends with the action, so nothing has to be restored. The real and saved ids stay ours, since the kernel
decides by them which users may send signals to that thread. The system calls are made directly, since the functions of
the C library change all threads.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from treadle.errors import EngineError, RightsError

Result = TypeVar("Result")

LONGEST_STATUS = 1 << 20
"""Bytes per read of /proc/<pid>/status. The longest line of this file lists up to 65,536 groups."""

_SET_IDS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}
"""The numbers of setgroups, setresgid and setresuid."""
_CAPABILITIES_VERSION = 0x20080522
_LIBC = ctypes.CDLL(None, use_errno=True)


class Identity(NamedTuple):
    """The ids by which the kernel decides which files a process may use."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def status(process: int) -> dict[bytes, bytes]:
    """The lines of /proc/<pid>/status; `process` is a descriptor of /proc/<pid>."""
    file = os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    with open(file, "rb", buffering=0) as stream:
        text = b"".join(iter(lambda: stream.read(LONGEST_STATUS), b""))
    return dict(part.split(b":\t", 1) for part in text.split(b"\n") if b":\t" in part)


def identity(lines: dict[bytes, bytes], where: str) -> Identity:
    """The identity in the lines of a `status` file.

    A process of a set-user-ID program is refused. It has the rights of the program's owner, so the user that started it
    could make us change files with the rights of root.
    """
    try:
        uids, gids = set(map(int, lines[b"Uid"].split())), set(map(int, lines[b"Gid"].split()))
        groups = tuple(map(int, lines.get(b"Groups", b"").split()))
    except (KeyError, ValueError) as error:
        raise EngineError("the kernel does not report its user", where=where) from error
    if len(uids) != 1 or len(gids) != 1:
        remedy = "start it without a set-user-ID or set-group-ID program"
        raise RightsError("its real and effective user or group differ", where=where, remedy=remedy)
    return Identity(uids.pop(), gids.pop(), groups)


def act_as(who: Identity, action: Callable[[], Result]) -> Result:
    """Run an action with exactly the rights of this identity; an error if we have no right to take them.

    If user and group of the identity are our own, the action runs as we are: our capabilities and groups stay.
    """
    if (who.uid, who.gid) == (os.geteuid(), os.getegid()):
        return action()

    def inside() -> Result:
        _become(who)
        return action()

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(inside).result()


def _become(who: Identity) -> None:
    """Replace the rights of the calling thread by those of another identity, permanently."""
    numbers = _SET_IDS.get(platform.machine())
    if numbers is None:
        raise RightsError(f"files of other users can't be reached on {platform.machine()}", remedy="run as that user")
    set_groups, set_gid, set_uid = numbers
    groups = (ctypes.c_uint32 * len(who.groups))(*who.groups)
    keep = ctypes.c_long(-1)
    _call("setgroups", _LIBC.syscall(set_groups, len(who.groups), groups))
    _call("setresgid", _LIBC.syscall(set_gid, keep, ctypes.c_ulong(who.gid), keep))
    _call("setresuid", _LIBC.syscall(set_uid, keep, ctypes.c_ulong(who.uid), keep))
    head, nothing = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
    _call("capset", _LIBC.capset(head, nothing))


def _call(name: str, result: int) -> None:
    if result != 0:
        why = os.strerror(ctypes.get_errno())
        raise RightsError(f"the rights of another user can't be taken ({name}: {why})", remedy="run as that user")
