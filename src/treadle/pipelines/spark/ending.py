"""Stops streaming queries within a given time.

Spark's own `stop` waits until the running batch has ended, which may be never if the batch is in a Python function. So
each query is stopped in a thread of its own, and queries that are not done in time are left to end by themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Stops:
    """Calls that stop something, by name; each is made once."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}
        self._errors: list[Exception] = []

    def begin(self, name: str, stop: Callable[[], object]) -> None:
        """Call `stop` in a thread of its own, unless that was done before."""
        if name not in self._threads:
            thread = threading.Thread(target=self._call, args=(stop,), name=f"treadle-stop-{name}", daemon=True)
            self._threads[name] = thread
            thread.start()

    def wait(self, limit: float | None = None) -> list[str]:
        """Wait until `limit` (monotonic), or without it for all; return the names of the calls that are not done."""
        for thread in self._threads.values():
            thread.join(None if limit is None else max(0.0, limit - time.monotonic()))
        return [name for name, thread in self._threads.items() if thread.is_alive()]

    def check(self) -> None:
        """Raise the error of the first call that failed."""
        if self._errors:
            raise self._errors[0]

    def _call(self, stop: Callable[[], object]) -> None:
        try:
            stop()
        except Exception as error:  # raised by `check`
            self._errors.append(error)
