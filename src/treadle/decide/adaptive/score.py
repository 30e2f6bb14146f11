"""The score of an algorithm: Eq. 1 and Eq. 2 of AMoS sections 3.3 and 3.4, and the synopses that they use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.decide.adaptive.objectives import Objective
from treadle.model import Floats

NEUTRAL = 1.0
"""The score of an algorithm that is as good as the average of all, or that has not run."""


@dataclass(frozen=True, slots=True)
class Synopsis:
    """Summary of a statistic, kept instead of its values."""

    count: float
    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float) -> Synopsis:
        return cls(1.0, value, value, value)

    def merge(self, other: Synopsis) -> Synopsis:
        """Combine two synopses as if all their values had been in one."""
        count = self.count + other.count
        low, high = min(self.low, other.low), max(self.high, other.high)
        mean = self.mean * (self.count / count) + other.mean * (other.count / count)
        return Synopsis(count, min(max(mean, low), high), low, high)

    def fade(self, discount: float) -> Synopsis:
        """Reduce the weight of the past and move its extremes towards the mean, so that an old outlier fades.

        A discount of 1 forgets nothing, as in the paper.
        """
        low = self.mean - (self.mean - self.low) * discount
        high = self.mean + (self.high - self.mean) * discount
        return Synopsis(self.count * discount, self.mean, low, high)


def update(history: Synopsis | None, current: Synopsis, discount: float = 1.0) -> Synopsis:
    """Add the current algorithm's statistics to the history, which must include them before Eq. 1 is used."""
    return current if history is None else history.fade(discount).merge(current)


def normalised(level: Floats, history: Synopsis) -> Floats:
    """The fraction of Eq. 1: the distance from the historical mean as a part of the historical range, in [-1, 1]."""
    spread = history.high - history.low
    if spread <= 0:
        return np.zeros_like(level)
    return np.clip((level - history.mean) / spread, -1.0, 1.0)


def statistic_score(level: float, history: Synopsis, old: float | None, decay: float) -> float:
    """Eq. 1: the new z of one statistic. The first time (`old` is None) the decay is 0."""
    fraction = float(normalised(np.array([level]), history)[0])
    return fraction if old is None else fraction * (1.0 - decay) + old * decay


def algorithm_score(objectives: Sequence[Objective], z: Mapping[str, float]) -> float:
    """Eq. 2: sum of q_i z_i w_i, plus 1; in [0, 2] for weights that sum to 1. Unknown objectives count as the mean."""
    total = sum(objective.sign * z.get(objective.metric, 0.0) * objective.weight for objective in objectives)
    return min(max(total + NEUTRAL, 0.0), 2.0)
