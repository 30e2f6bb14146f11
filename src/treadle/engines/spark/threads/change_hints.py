"""Cheap signs that the threads of a process are not what they were, so that a dump of all of them is due.

A dump costs a millisecond here, and a pause of the application. The number of threads costs some microseconds, and so
does the kernel's short name of a pooled thread, which changes when it becomes idle or gets a task.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from treadle.linux.files.open_files import KeptFiles


class ChangeHints:
    """What can be seen from outside of some processes."""

    def __init__(self) -> None:
        self._names = KeptFiles("comm", 16)

    def read(self, pids: Iterable[int], pooled: Iterable[tuple[int, int]]) -> list[object]:
        """Two readings that are equal: as many threads as before, and no pooled one was seen to change hands."""
        found: list[object] = []
        for pid in pids:
            try:
                found.append(os.stat(f"/proc/{pid}/task").st_nlink)  # two, and one for each thread
            except OSError:
                found.append(None)
        found += map(self._short_name, pooled)
        return found

    def close(self) -> None:
        self._names.close()

    def keep(self, pooled: Iterable[tuple[int, int]]) -> None:
        """These are read from now on; the files of others are closed."""
        self._names.keep_only(pooled)

    def _short_name(self, thread: tuple[int, int]) -> bytes | None:
        try:
            return self._names.read(thread)
        except OSError:  # it has ended, and the list says so too
            return None
