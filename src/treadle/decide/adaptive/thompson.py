"""Discounted Gaussian Thompson sampling: draws a likely mean reward for each candidate and takes the highest.

So each candidate is chosen as often as it is likely to be the best, given the last intervals. The draws for a candidate
that has not run for long grow wide again, so that drift is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.decide.adaptive.discounted import believe, check, prefer
from treadle.decide.adaptive.learner import Evidence, Learner, Pick


@dataclass(frozen=True)
class Thompson(Learner):
    """Probability matching with a normal posterior around the discounted mean."""

    name: ClassVar[str] = "thompson"
    discount: float = 0.97
    reluctance: float = 0.1
    """The gain a switch must promise, in standard deviations of the reward."""

    def __post_init__(self) -> None:
        check(self.name, self.discount, reluctance=self.reluctance)

    def choose(self, evidence: Evidence, rng: np.random.Generator) -> Pick:
        belief = believe(evidence, self.discount)
        deviation = belief.noise / np.sqrt(np.maximum(belief.weight, 0.1))
        draw = belief.mean + deviation * rng.standard_normal(len(belief.mean))
        index = prefer(draw, evidence.current, self.reluctance * belief.noise)
        return Pick(index, f"drew {draw[index]:.3f} around mean reward {belief.mean[index]:.3f}")
