"""Treadle's own thread: it must not wait for a core behind those that it has made urgent itself.

What it starts from there (who looks at an engine, who asks Spark's UI) is as urgent.
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
"""Nanoseconds: of equally urgent threads a kernel with time slices takes the one with the shortest first."""


@contextmanager
def ahead() -> Iterator[None]:
    """As urgent as a thread can be without real-time, as far as this user may; afterwards as before."""
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
    """Of this thread, where the kernel takes one; the one that it had."""
    try:
        mine = get_attributes(0)
        had, mine.runtime = mine.runtime, nanoseconds
        set_attributes(0, mine)
    except (OSError, TreadleError):
        return 0
    return had
