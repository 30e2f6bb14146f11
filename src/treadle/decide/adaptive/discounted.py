"""Shared by `greedy`, `thompson` and `ucb`: discounted means and noise of the rewards, and the reluctance to switch.

Older intervals weigh less (Garivier and Moulines, "On upper-confidence bound policies for non-stationary bandit
problems", 2008), so a candidate that has not run for long becomes uncertain and is tried again. The noise is measured
over all candidates, not assumed: Eq. 2's rewards lie close together when the history's extremes are far apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from treadle.decide.adaptive.learner import Evidence
from treadle.errors import ConfigError
from treadle.model import Floats

_LEAST_NOISE = 1e-3
"""The least noise that is assumed, on the scale of Eq. 2: at a noise of 0 no other candidate would be tried again."""


@dataclass(frozen=True)
class Belief:
    """The present estimate of each candidate's reward."""

    weight: Floats
    """Discounted number of intervals in which the candidate ran."""
    mean: Floats
    """Discounted mean reward; for a candidate that has not run, the mean over all."""
    noise: float
    """Standard deviation of one interval's reward around its candidate's mean."""


def believe(evidence: Evidence, discount: float) -> Belief:
    """Estimate the reward of each candidate, with the intervals weighted by age."""
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
    # Until candidates have run twice, the noise is estimated by the scatter of all rewards, with the weight of one
    # interval.
    freedom = max(total - float(np.minimum(weight, 1.0).sum()), 0.0)
    noise = np.sqrt((within + overall) / (freedom + 1.0))
    return Belief(weight, mean, max(float(noise), _LEAST_NOISE))


def prefer(values: Floats, current: int | None, margin: float) -> int:
    """Return the index of the highest value, or `current` unless that value exceeds its own by more than `margin`."""
    best = int(np.argmax(values))
    if current is not None and values[best] - values[current] <= margin:
        return current
    return best


def check(who: str, discount: float, **others: float) -> None:
    """Check that the discount is above 0 and at most 1, and that all other parameters are finite and not negative."""
    where = f"learner '{who}'"
    if not 0 < discount <= 1:
        raise ConfigError(f"discount is {discount:g}", where=where, remedy="choose it above 0 and up to 1")
    for name, value in others.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name} is {value:g}", where=where, remedy="choose 0 or more")
