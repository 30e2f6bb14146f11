"""What the stronger learners share: discounted means and noise of the rewards, and the reluctance to switch.

Older intervals weigh less (Garivier and Moulines, "On upper-confidence bound policies for non-stationary bandit
problems", 2008), so a candidate left alone becomes uncertain again and is tried again. The noise is measured over all
candidates, not assumed: Eq. 2's rewards lie close together when the history's extremes are far apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from treadle.decide.adaptive.learner import Evidence
from treadle.errors import ConfigError
from treadle.model import Floats

_LEAST_NOISE = 1e-3
"""On the scale of Eq. 2. Rewards that never differ are not taken as sure, or nothing else would be tried again."""


@dataclass(frozen=True)
class Belief:
    """What is known of each candidate now."""

    weight: Floats
    """Discounted number of intervals it was seen in."""
    mean: Floats
    """Discounted mean reward; the mean of all for one that was not seen."""
    noise: float
    """Standard deviation of one interval's reward around its candidate's mean."""


def believe(evidence: Evidence, discount: float) -> Belief:
    """Weigh the intervals by age and sum them up per candidate."""
    count = len(evidence.scores)
    chosen, rewards = evidence.chosen, evidence.rewards
    age = np.arange(len(chosen) - 1, -1, -1)
    by_age = discount**age
    weight = np.bincount(chosen, by_age, minlength=count).astype(np.float64)
    total = float(weight.sum())
    if total == 0:
        return Belief(weight, evidence.scores.copy(), _LEAST_NOISE)
    everyone = float(by_age @ rewards) / total
    seen = weight > 0
    sums = np.bincount(chosen, by_age * rewards, minlength=count)
    mean = np.where(seen, sums / np.where(seen, weight, 1.0), everyone)
    within = float(by_age @ (rewards - mean[chosen]) ** 2)
    overall = float(by_age @ (rewards - everyone) ** 2) / total
    # Before candidates have run twice the noise can only be guessed: as the scatter of all, with one interval's weight.
    freedom = max(total - float(np.minimum(weight, 1.0).sum()), 0.0)
    noise = np.sqrt((within + overall) / (freedom + 1.0))
    return Belief(weight, mean, max(float(noise), _LEAST_NOISE))


def prefer(values: Floats, current: int | None, margin: float) -> int:
    """The highest value, but the current one stays unless another beats it by more than the margin."""
    best = int(np.argmax(values))
    if current is not None and values[best] - values[current] <= margin:
        return current
    return best


def check(who: str, discount: float, **others: float) -> None:
    """A discount is above 0 and up to 1, all other parameters are finite and not negative."""
    where = f"learner '{who}'"
    if not 0 < discount <= 1:
        raise ConfigError(f"discount is {discount:g}", where=where, remedy="choose it above 0 and up to 1")
    for name, value in others.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name} is {value:g}", where=where, remedy="choose 0 or more")
