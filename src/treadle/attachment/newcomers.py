"""Finds applications that start after Treadle and have a name that matches one of the user's patterns.

A thread of its own scans for them, since a scan of all processes is too slow for a round.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from treadle.engines.spark import application
from treadle.engines.spark.application import Application
from treadle.errors import TreadleError

log = logging.getLogger("treadle.attach")

SCAN = 1.0
"""Seconds between two scans."""


class Newcomers:
    """Scans for new applications of one user until it is closed; without patterns it does not scan."""

    def __init__(self, patterns: Sequence[str], user: int | None = None) -> None:
        self.expected = bool(patterns)
        self._looking = application.NewApplicationFinder(patterns, user)
        self._found: SimpleQueue[Application] = SimpleQueue()
        self._closed = threading.Event()
        if patterns:
            threading.Thread(target=self._run, name="treadle-newcomers", daemon=True).start()

    def next(self) -> Application | None:
        """Return the next found application; None if there is none."""
        try:
            return self._found.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(SCAN):
            try:
                for found in self._looking.look():
                    self._found.put(found)
            except (TreadleError, OSError) as error:
                log.warning("can't scan for new applications: %s", error, extra={"error": str(error)})
