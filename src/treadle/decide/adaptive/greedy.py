"""Epsilon-greedy on discounted means: the best candidate, sometimes a random one. The simplest useful learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.decide.adaptive.discounted import believe, check, prefer
from treadle.decide.adaptive.learner import Evidence, Learner, Pick
from treadle.errors import ConfigError


@dataclass(frozen=True)
class Greedy(Learner):
    """Takes a random candidate in a share `epsilon` of the intervals, otherwise that of the highest discounted mean."""

    name: ClassVar[str] = "greedy"
    epsilon: float = 0.05
    discount: float = 0.97
    reluctance: float = 0.1
    """The gain a switch must promise, in standard deviations of the reward."""

    def __post_init__(self) -> None:
        check(self.name, self.discount, reluctance=self.reluctance)
        if not 0 <= self.epsilon <= 1:
            raise ConfigError(
                f"epsilon is {self.epsilon:g}", where=f"learner '{self.name}'", remedy="choose it from 0 to 1"
            )

    def choose(self, evidence: Evidence, rng: np.random.Generator) -> Pick:
        if rng.random() < self.epsilon:
            return Pick(int(rng.integers(len(evidence.scores))), f"explored, as in {self.epsilon:.0%} of the cases")
        belief = believe(evidence, self.discount)
        index = prefer(belief.mean, evidence.current, self.reluctance * belief.noise)
        return Pick(index, f"mean reward {belief.mean[index]:.3f}")
