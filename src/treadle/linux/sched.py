"""sched_getattr and sched_setattr as direct system calls, since most C libraries do not have them yet."""

from __future__ import annotations

import ctypes
import os
from functools import cache

from treadle.errors import EngineError


class Attributes(ctypes.Structure):
    """`struct sched_attr` in its first version, which every kernel since 3.14 accepts."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )
    size: int
    policy: int
    flags: int
    nice: int
    priority: int
    runtime: int
    deadline: int
    period: int


def get_attributes(tid: int) -> Attributes:
    """Read the attributes of a thread; 0 is the calling thread."""
    found = Attributes()
    _, number = _numbers()
    _call(number, tid, ctypes.byref(found), ctypes.sizeof(found), 0)
    return found


def set_attributes(tid: int, wanted: Attributes) -> None:
    """Set all attributes of a thread in one call; 0 is the calling thread."""
    wanted.size = ctypes.sizeof(wanted)
    number, _ = _numbers()
    _call(number, tid, ctypes.byref(wanted), 0)


def _call(*arguments: object) -> None:
    if _libc().syscall(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _numbers() -> tuple[int, int]:
    """The numbers of the two system calls, set and get, on this architecture."""
    machine = os.uname().machine
    if machine not in _CALLS:
        raise EngineError(f"the system calls for time slices on '{machine}' are not known", remedy="use another knob")
    return _CALLS[machine]


_CALLS = {
    "x86_64": (314, 315),
    "aarch64": (274, 275),
    "riscv64": (274, 275),
    "loongarch64": (274, 275),
    "ppc64le": (355, 356),
    "s390x": (345, 346),
}
