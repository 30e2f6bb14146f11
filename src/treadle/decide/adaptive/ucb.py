"""Discounted UCB: the candidate with the highest upper confidence bound of its reward is next.

Garivier and Moulines' D-UCB with the width taken from the measured noise, and with a gain that a switch must promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.decide.adaptive.discounted import believe, check, prefer
from treadle.decide.adaptive.learner import Evidence, Learner, Pick


@dataclass(frozen=True)
class Ucb(Learner):
    """Takes the highest upper confidence bound; that of a candidate that has not run for long rises again."""

    name: ClassVar[str] = "ucb"
    discount: float = 0.97
    width: float = 0.5
    """Distance of the bound from the mean, in standard errors times the root of the logarithm of the total weight."""
    reluctance: float = 0.1
    """The gain a switch must promise, in standard deviations of the reward."""

    def __post_init__(self) -> None:
        check(self.name, self.discount, width=self.width, reluctance=self.reluctance)

    def choose(self, evidence: Evidence, rng: np.random.Generator) -> Pick:  # noqa: ARG002 (no chance in it)
        belief = believe(evidence, self.discount)
        unseen = np.flatnonzero(belief.weight == 0)
        if len(unseen):
            return Pick(int(unseen[0]), "nothing is known of it yet")
        breadth = self.width * belief.noise * np.sqrt(np.log(np.e + belief.weight.sum()))
        bound = belief.mean + breadth / np.sqrt(belief.weight)
        index = prefer(bound, evidence.current, self.reluctance * belief.noise)
        return Pick(index, f"bound {bound[index]:.3f} over mean reward {belief.mean[index]:.3f}")
