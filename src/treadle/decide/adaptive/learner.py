"""What a learner is: it sees how the candidates did and picks the next. It doesn't know what they are.

A learner is a frozen value with its parameters only. All it may learn from is in the `Evidence`, so that candidates can
come and go, objectives can change and a saved state can be loaded without any learner having a part in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.model import Floats, Ints


@dataclass(frozen=True)
class Evidence:
    """How the candidates did. A candidate is its index into `scores`."""

    scores: Floats
    """Eq. 2 for each candidate, smoothed over its runs by Eq. 1's decay; 1 for one that has not run."""
    chosen: Ints
    """The candidate of every remembered interval, oldest first."""
    rewards: Floats
    """Eq. 2 of those intervals alone, all on the scale of the same history."""
    current: int | None = None
    """Who is in charge now."""


@dataclass(frozen=True, slots=True)
class Pick:
    """The next candidate and, in words, why."""

    index: int
    reason: str


class Learner(ABC):
    """Picks the next candidate; the same evidence and generator state give the same pick."""

    name: ClassVar[str]

    @abstractmethod
    def choose(self, evidence: Evidence, rng: np.random.Generator) -> Pick: ...
