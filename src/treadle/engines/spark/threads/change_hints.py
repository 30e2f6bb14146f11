"""Cheap signs that the threads of a process have changed, so that a thread dump is due.

A dump costs us a millisecond, and the application a pause. Two signs cost only some microseconds to read: the number
of threads, and the kernel's short name of a pooled thread, which changes when the thread gets a task or becomes idle.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from treadle.linux.files.open_files import KeptFiles


class ChangeHints:
    """Reads the signs of some processes, from /proc."""

    def __init__(self) -> None:
        self._names = KeptFiles("comm", 16)

    def read(self, pids: Iterable[int], pooled: Iterable[tuple[int, int]]) -> list[object]:
        """Return the signs: if two readings are equal, no number of threads and no name of a pooled thread differs."""
        found: list[object] = []
        for pid in pids:
            try:
                found.append(os.stat(f"/proc/{pid}/task").st_nlink)  # 2 + the number of threads
            except OSError:
                found.append(None)
        found += map(self._short_name, pooled)
        return found

    def close(self) -> None:
        self._names.close()

    def keep(self, pooled: Iterable[tuple[int, int]]) -> None:
        """Set the threads to read; close the files of all others."""
        self._names.keep_only(pooled)

    def _short_name(self, thread: tuple[int, int]) -> bytes | None:
        try:
            return self._names.read(thread)
        except OSError:  # it has ended: the number of threads differs, too
            return None
