"""Reads the kernel's ids of Java threads from the memory of the JVM, without stopping any thread.

A thread dump has these ids, too, but waits until every thread has reached a safepoint, which takes long at a low
priority. HotSpot's record of a Java thread holds the address of a second record, which holds the id. The two offsets
differ between builds and are found from one dump. Memory is only read, by the system call `process_vm_readv`, for which
this user needs the right to trace that process.
"""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Iterable, Sequence

from treadle.jvm.dump import JavaThread

REACH = 1024
"""Bytes of the first record that are searched for addresses; of each second record, a quarter of this number."""
FEWEST, MOST = 4, 12
"""Offsets are searched with the `MOST` oldest threads, and must be right for at least `FEWEST` of them."""


SAME = 7
"""Number of leading bytes that a Java thread's name and the kernel's `comm` share in all versions of HotSpot."""


class Natives:
    """Finds thread ids in a JVM's memory, at offsets that are learned from the `threads` of one dump."""

    def __init__(self, pid: int, threads: Iterable[JavaThread]) -> None:
        self._pid = pid
        known = sorted((thread for thread in threads if thread.address), key=lambda thread: thread.number)
        self._offsets = _search(pid, known[:MOST])

    @property
    def known(self) -> bool:
        """Whether the offsets were found; without them every id is unknown."""
        return self._offsets is not None

    def find(self, address: int, name: str = "") -> int | None:
        """The id of the thread with a record at `address`; 0 if it has ended; None if unknown or `name` does not match.

        A thread that has not run yet has the name of the thread that started it: for such a thread, leave out `name`.
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
    """Find the offset of the second record's address in the first record, and of the id in the second record.

    Some threads may disagree, since they may have ended after the dump.
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
    """Read memory of another process; None if it is not mapped, or reading is not permitted."""
    buffer = ctypes.create_string_buffer(length)
    here, there = _Piece(ctypes.addressof(buffer), length), _Piece(address, length)
    count = _LIBC.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return buffer.raw if count == length else None
