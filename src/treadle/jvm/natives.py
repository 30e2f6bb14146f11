"""The kernel's ids of Java threads by where the JVM keeps them, without stopping anything.

A thread dump tells them too, but waits until every thread has come to a safe point: those with a low priority take
their time. A Java thread holds the address of HotSpot's record of it, that one the address of a record with the id. At
which offsets is found out from one dump, and differs from build to build. Memory is only read, by the kernel's
`process_vm_readv`, for which this user needs the right to trace that process.
"""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Iterable, Sequence

from treadle.jvm.dump import JavaThread

REACH = 1024
"""Bytes of each record that are searched."""
FEWEST, MOST = 4, 12
"""Threads that an offset has to be right for, so that it is believed, and that are tried: the oldest, which stay."""


SAME = 7
"""Bytes of its name that the kernel's short name has too, in all versions of HotSpot."""


class Natives:
    """Made from a dump of a JVM."""

    def __init__(self, pid: int, threads: Iterable[JavaThread]) -> None:
        self._pid = pid
        known = sorted((thread for thread in threads if thread.address), key=lambda thread: thread.number)
        self._offsets = _search(pid, known[:MOST])

    @property
    def known(self) -> bool:
        """Whether it can find any."""
        return self._offsets is not None

    def find(self, address: int, name: str = "") -> int | None:
        """The id of the thread whose record is here; 0 if it has ended; None if it is not known for sure by its name.

        Before it has run for the first time a thread is called as the one that started it: then it is found without.
        """
        if self._offsets is None or not address:
            return None
        first, second = self._offsets
        record = _read(self._pid, address + first, 8)
        found = _read(self._pid, struct.unpack("=Q", record)[0] + second, 4) if record else None
        if not found:
            return None
        tid: int = struct.unpack("=i", found)[0]
        try:
            with open(f"/proc/{self._pid}/task/{tid}/comm", "rb", buffering=0) as file:
                same = not name or file.read(64)[:SAME] == f"{name}\n".encode()[:SAME]
        except OSError:
            return 0
        return tid if same else None


def _search(pid: int, threads: Sequence[JavaThread]) -> tuple[int, int] | None:
    """The offset of the second record's address in the first, and that of the id in the second.

    Not all threads have to agree, since some may have ended after the dump.
    """
    right = Counter(offsets for thread in threads for offsets in set(_offsets(pid, thread)))
    most = max(right.values(), default=0)
    return min(offsets for offsets, count in right.items() if count == most) if most >= FEWEST else None


def _offsets(pid: int, thread: JavaThread) -> Iterable[tuple[int, int]]:
    wanted = struct.pack("=i", thread.tid)
    record = _read(pid, thread.address, REACH) or b""
    for at in range(0, len(record) - 7, 8):
        (address,) = struct.unpack_from("=Q", record, at)
        if address % 8 or not 0x10000 < address < 1 << 47:
            continue
        there = _read(pid, address, REACH // 4) or b""
        place = there.find(wanted)
        while place >= 0:
            if place % 4 == 0:
                yield at, place
            place = there.find(wanted, place + 1)


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_LIBC = ctypes.CDLL(None, use_errno=True)


def _read(pid: int, address: int, length: int) -> bytes | None:
    """Memory of another process; None where there is none, or it is not ours to see."""
    buffer = ctypes.create_string_buffer(length)
    here, there = _Piece(ctypes.addressof(buffer), length), _Piece(address, length)
    count = _LIBC.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return buffer.raw if count == length else None
