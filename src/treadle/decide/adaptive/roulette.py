"""AMoS' own learner (section 3.5): fitness-proportional choice. It forgets through Eq. 1's decay only.

Its selection pressure is weak: with scores of 1.2 and 0.8 the worse candidate still gets two intervals of five.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.decide.adaptive.learner import Evidence, Learner, Pick


@dataclass(frozen=True)
class Roulette(Learner):
    """Each candidate has a slice of the wheel as large as its Eq. 2 score."""

    name: ClassVar[str] = "roulette"

    def choose(self, evidence: Evidence, rng: np.random.Generator) -> Pick:
        wheel = np.cumsum(evidence.scores)
        total = float(wheel[-1])
        if total <= 0:
            return Pick(int(rng.integers(len(wheel))), "all scores are 0, drawn evenly")
        index = min(int(np.searchsorted(wheel, rng.random() * total, side="right")), len(wheel) - 1)
        score = float(evidence.scores[index])
        return Pick(index, f"drawn with score {score:.3f}, probability {score / total:.0%}")
