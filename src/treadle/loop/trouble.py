"""Contains repeated failures: they are logged once and retried after pauses that double, and all other work goes on."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from treadle.durations import Backoff
from treadle.text import visible

LOG = logging.getLogger("treadle.loop")
TENFOLDS = frozenset(10**power for power in range(1, 10))


@dataclass
class Trouble:
    """A streak of failures, with retries after pauses that double from `pause` up to `longest` seconds.

    It logs the first failure (with a traceback if `traces`), the 10th, the 100th and so on, and the end of the streak.
    """

    what: str
    pause: float = 0.0
    longest: float = 0.0
    means: str = "its last decisions stay"
    """The consequence of the failure, for the log."""
    log: logging.Logger = LOG
    traces: bool = False
    """Whether the first failure is logged with its traceback."""
    total: int = 0
    streak: int = 0
    error: str = ""
    retry_at: float = -math.inf
    news: bool = True
    """True if a failure, or the end of a streak, was recorded since the loop last counted failures."""

    def waits(self, now: float) -> bool:
        return now < self.retry_at

    def failed(self, now: float, error: object) -> None:
        self.news = True
        self.total += 1
        self.streak += 1
        self.error = visible(str(error)) or type(error).__name__
        wait = Backoff(self.pause, self.longest).pause(self.streak)
        self.retry_at = now + wait * (1.0 - 1e-6)  # a round at just that time is not too early
        details = {"trouble": self.what, "error": self.error}
        if self.streak == 1:
            trace = error if self.traces and isinstance(error, Exception) else None
            self.log.warning("%s fails, %s: %s", self.what, self.means, self.error, extra=details, exc_info=trace)
        elif self.streak in TENFOLDS:
            self.log.warning("%s has failed %d times in a row: %s", self.what, self.streak, self.error, extra=details)

    def worked(self) -> None:
        if self.streak:
            self.log.info("%s works again after %d failures", self.what, self.streak, extra={"trouble": self.what})
            self.news = True
            self.streak, self.error, self.retry_at = 0, "", -math.inf


class Attempts:
    """Does the parts of a thread's repeated work. A part that fails is retried after pauses, and the others go on."""

    def __init__(self, pause: float, longest: float, log: logging.Logger) -> None:
        self._pause, self._longest, self._log = pause, longest, log
        self._troubles: dict[str, Trouble] = {}
        """Part -> its failures, only for parts that fail at the moment."""

    def __call__(self, what: str, work: Callable[[], object]) -> bool:
        """Do this part unless it pauses after a failure; return whether it was done."""
        trouble, now = self._troubles.get(what), time.monotonic()
        if trouble is not None and trouble.waits(now):
            return False
        try:
            work()
        except Exception as error:
            if trouble is None:
                means = "the rest goes on"
                trouble = Trouble(what, self._pause, self._longest, means, self._log, traces=True)
                self._troubles[what] = trouble
            trouble.failed(now, error)
            return False
        if trouble is not None:
            del self._troubles[what]
            trouble.worked()
        return True
