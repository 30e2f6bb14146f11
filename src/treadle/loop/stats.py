"""What the loop did and what it cost, for those who look at it from outside."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field


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
    """CPU time of all rounds, of the loop's own thread."""
    round_ms: deque[float] = field(default_factory=lambda: deque(maxlen=1000))

    @property
    def last_ms(self) -> float:
        return self.round_ms[-1] if self.round_ms else 0.0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.round_ms) if self.round_ms else 0.0
