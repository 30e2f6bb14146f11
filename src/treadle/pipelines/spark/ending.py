"""Stops streaming queries within a given time.

Spark's own `stop` waits until the running batch has ended, which may be never if the batch is in a Python function. So
each query is stopped in a thread of its own, and a query that does not end in time goes on until it ends by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Stops:
    """Calls that each stop a query, by name. A call is made only once."""

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
        """Wait for all calls, at most until `limit` (monotonic); return the names of calls that have not returned."""
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
