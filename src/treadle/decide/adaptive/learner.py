"""The interface of learners, which pick the next candidate from the scores and rewards of all.

A learner is a frozen value that holds its parameters only. All that it learns from is in the `Evidence`, so no learner
is involved when candidates are added or removed, objectives change or a saved state is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.model import Floats, Ints


@dataclass(frozen=True)
class Evidence:
    """The results of the candidates, which are identified by their index in `scores`."""

    scores: Floats
    """Eq. 2 for each candidate, smoothed over its runs by Eq. 1's decay; 1 for a candidate that has not run."""
    chosen: Ints
    """The candidate of every remembered interval, oldest first."""
    rewards: Floats
    """Eq. 2 of each interval in `chosen`, without smoothing; all are normalised by the same history."""
    current: int | None = None
    """The candidate in charge now."""


@dataclass(frozen=True, slots=True)
class Pick:
    """The next candidate and the reason in words."""

    index: int
    reason: str


class Learner(ABC):
    """Picks the next candidate; the same evidence and generator state give the same pick."""

    name: ClassVar[str]

    @abstractmethod
    def choose(self, evidence: Evidence, rng: np.random.Generator) -> Pick: ...
