"""AMoS, "Adaptive Multi-Objective Scheduling Selection": a policy that chooses among policies, with several learners.

This module has the public names and creates policies and learners from text; the other modules score and learn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np

from treadle.decide.adaptive.adaptive import Adaptive, Choice
from treadle.decide.adaptive.candidates import NAMES, PAPER, expanded, joined, labelled, respelt, spelt_out
from treadle.decide.adaptive.greedy import Greedy
from treadle.decide.adaptive.learner import Evidence, Learner, Pick
from treadle.decide.adaptive.objectives import Objective, Spec, as_text, from_text, parse_objective, parse_objectives
from treadle.decide.adaptive.roulette import Roulette
from treadle.decide.adaptive.score import Synopsis, algorithm_score, statistic_score
from treadle.decide.adaptive.thompson import Thompson
from treadle.decide.adaptive.ucb import Ucb
from treadle.decide.policy import Policy
from treadle.errors import ConfigError

__all__ = [
    "LEARNERS",
    "NAMES",
    "PAPER",
    "Adaptive",
    "Choice",
    "Evidence",
    "Greedy",
    "Learner",
    "Objective",
    "Pick",
    "Roulette",
    "Synopsis",
    "Thompson",
    "Ucb",
    "algorithm_score",
    "as_text",
    "create",
    "expanded",
    "from_text",
    "joined",
    "labelled",
    "learner",
    "parse_objective",
    "parse_objectives",
    "respelt",
    "spelt_out",
    "statistic_score",
]

LEARNERS: dict[str, type[Learner]] = {kind.name: kind for kind in (Roulette, Ucb, Thompson, Greedy)}


def learner(name: str, **parameters: float) -> Learner:
    """Create a learner by its name."""
    known = ", ".join(LEARNERS)
    if name not in LEARNERS:
        raise ConfigError(f"there is no learner '{name}'", where="policy 'adaptive'", remedy=f"use one of {known}")
    takes = tuple(signature(LEARNERS[name]).parameters)
    for parameter in parameters:
        if parameter not in takes:
            remedy = f"use one of {', '.join(takes)}" if takes else "it has no parameters"
            raise ConfigError(f"has no parameter '{parameter}'", where=f"learner '{name}'", remedy=remedy)
    return LEARNERS[name](**parameters)


def create(
    candidates: Mapping[str, Policy] | Sequence[Policy],
    objectives: str | Iterable[Spec],
    learner: Learner | str = "ucb",
    rng: np.random.Generator | int = 0,
    **options: Any,
) -> Adaptive:
    """Create an adaptive policy; `learner` may be a name and `rng` a seed. `options` go to `Adaptive`."""
    chosen = _by_name(learner) if isinstance(learner, str) else learner
    generator = np.random.default_rng(rng) if isinstance(rng, int) else rng
    return Adaptive(candidates, objectives, chosen, generator, **options)


_by_name = learner
