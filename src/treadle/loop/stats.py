"""What the loop did and what it cost, for those who look at it from outside."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

WEIGHED = 16
"""One round in so many is weighed: to ask the kernel for a thread's CPU time can cost as much as the round itself."""


@dataclass
class Stats:
    """Counts since the start, and the cost of the latest rounds."""

    rounds: int = 0
    skipped: int = 0
    """Decisions left out because the loop was late by more than their period."""
    changes: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """By engine: how often it could not be looked at."""
    policy_failures: dict[str, int] = field(default_factory=dict)
    knob_failures: dict[str, int] = field(default_factory=dict)
    """By `engine/knob`: values that could not be set."""
    troubles: dict[str, str] = field(default_factory=dict)
    """What fails now, and how."""
    cpu_seconds: float = 0.0
    """CPU time of all rounds, of the loop's own thread, from the rounds that were weighed."""
    round_ms: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    _cpu_weighed: float = field(default=0.0, repr=False)
    _weighed: int = field(default=0, repr=False)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Around a round: counts it and what it costs."""
        weighed = self.rounds % WEIGHED == 0
        started = time.perf_counter()
        cpu = time.thread_time() if weighed else 0.0
        try:
            yield
        finally:
            if weighed:
                self._cpu_weighed += time.thread_time() - cpu
                self._weighed += 1
            self.rounds += 1
            self.cpu_seconds = self._cpu_weighed * self.rounds / self._weighed
            self.round_ms.append((time.perf_counter() - started) * 1e3)

    @property
    def last_ms(self) -> float:
        return self.round_ms[-1] if self.round_ms else 0.0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.round_ms) if self.round_ms else 0.0
