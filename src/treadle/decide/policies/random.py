"""RANDOM: uniformly random priorities, new in each round; the baseline for any other policy (Lachesis section 5.1)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from treadle.decide.policies.shared.spec import Options
from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class Random(Policy):
    """Draws the priority of each instance at random in each round."""

    name: ClassVar[str] = "random"
    optimises: ClassVar[str] = "nothing (baseline)"
    paper: ClassVar[str] = "Lachesis 5.1"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    @classmethod
    def from_options(cls, options: Options) -> Random:
        return cls(options.rng)

    def decide(self, snapshot: Snapshot) -> Schedule:
        return Schedule(self._rng.random(len(snapshot.topology)), reason="drawn at random")

    def state(self) -> dict[str, Any]:
        return {"generator": dict(self._rng.bit_generator.state)}

    def load(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["generator"]
