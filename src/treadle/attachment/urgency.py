"""Raises the priority of Treadle's own thread, which must not wait for a core behind threads that it has made urgent.

Threads that it starts, to sample an engine or to query Spark's UI, inherit the priority.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from treadle.errors import TreadleError
from treadle.linux.sched import get_attributes, set_attributes

MOST_URGENT = -20
SLICE = 100_000
"""Nanoseconds: among equally urgent threads a kernel with time slices runs the one with the shortest slice first."""


@contextmanager
def ahead() -> Iterator[None]:
    """Make this thread as urgent as is possible without real-time and for this user; on exit, as it was before."""
    me = threading.get_native_id()
    nice = os.getpriority(os.PRIO_PROCESS, me)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, me, MOST_URGENT)
    own = _set_slice(SLICE)
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, nice)
        _set_slice(own)


def _set_slice(nanoseconds: int) -> int:
    """Set the time slice of this thread if the kernel has slices; return the one that it had."""
    try:
        mine = get_attributes(0)
        had, mine.runtime = mine.runtime, nanoseconds
        set_attributes(0, mine)
    except (OSError, TreadleError):
        return 0
    return had
