"""Treadle's own thread: it must not wait for a core behind those that it has made urgent itself.

What it starts from there (who looks at an engine, who asks Spark's UI) is as urgent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MOST_URGENT = -20


@contextmanager
def ahead() -> Iterator[None]:
    """As urgent as a thread can be without real-time, if this user may; afterwards as before."""
    me = threading.get_native_id()
    before = os.getpriority(os.PRIO_PROCESS, me)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, me, MOST_URGENT)
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, before)
