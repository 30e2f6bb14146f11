"""What the loop did and what it cost, for monitoring."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WEIGHED = 16
"""CPU time is measured in one of this many rounds: reading a thread's CPU time can cost as much as the round itself."""


@dataclass
class Stats:
    """Counts since the start, and the cost of the latest rounds."""

    rounds: int = 0
    skipped: int = 0
    """Decisions left out because the loop was late by more than their period."""
    changes: int = 0
    restored: int = 0
    """Values that were put back when an engine was removed, or at the end."""
    failures: dict[str, int] = field(default_factory=dict)
    """By engine: how often it could not be sampled."""
    policy_failures: dict[str, int] = field(default_factory=dict)
    knob_failures: dict[str, int] = field(default_factory=dict)
    """By `engine/knob`: values that could not be set."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Engine, policy, knob or other part that fails at the moment -> its last error."""
    cpu_seconds: float = 0.0
    """CPU time of the loop's own thread in all rounds, estimated from the rounds in which it was measured.

    The cost of sampling an engine is included only if the engine is `in_process`.
    """
    round_ms: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    phase_ms: dict[str, deque[float]] = field(default_factory=dict)
    """Latest durations: of each part of rounds with new samples, of these rounds (`all`), and of others (`quiet`)."""
    _cpu_weighed: float = field(default=0.0, repr=False)
    _weighed: int = field(default=0, repr=False)

    def round(self) -> _Round:
        """Return a context that counts a round and measures its cost."""
        return _Round(self)

    def weigh(
        self, watches: Sequence[Mapping[str, float]], rules: Sequence[tuple[float, float]], seconds: float
    ) -> None:
        """Add the durations of a round's parts by engine and by rule; without new samples only the whole duration."""
        if not watches:
            self.spent("quiet", seconds)
            return
        for phase in ("threads", "counters", "metrics"):
            self.spent(phase, sum(took.get(phase, 0.0) for took in watches))
        for part, phase in enumerate(("decision", "writing")):
            self.spent(phase, sum(took[part] for took in rules))
        self.spent("all", seconds)

    def spent(self, phase: str, seconds: float) -> None:
        """Add the duration of a part of a round."""
        known = self.phase_ms.get(phase)
        if known is None:
            known = self.phase_ms[phase] = deque(maxlen=1000)
        known.append(seconds * 1e3)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.round_ms) if self.round_ms else 0.0


class _Round:
    """Context manager of one round. A class, since a generator-based one costs each round several times as much."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._weighed = stats.rounds % WEIGHED == 0

    def __enter__(self) -> None:
        self._started = time.perf_counter()
        self._cpu = time.thread_time() if self._weighed else 0.0

    def __exit__(self, *_: object) -> None:
        stats = self._stats
        if self._weighed:
            stats._cpu_weighed += time.thread_time() - self._cpu
            stats._weighed += 1
        stats.rounds += 1
        stats.cpu_seconds = stats._cpu_weighed * stats.rounds / stats._weighed
        stats.round_ms.append((time.perf_counter() - self._started) * 1e3)
