"""Whole runs on small synthetic worlds: who is best changes, and queues are inherited. Seeded, so never by luck."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from treadle.decide.adaptive import LEARNERS, Adaptive, create
from treadle.decide.policy import Policy
from treadle.model import Operator, Query, Topology
from treadle.values import Schedule, Snapshot

TOPOLOGY = Topology.of([Query("q", (Operator("a"),))])
SEEDS = range(3)


class Arm(Policy):
    name: ClassVar[str] = "arm"

    def decide(self, snapshot: Snapshot) -> Schedule:
        return Schedule(np.zeros(1))


def index(policy: Adaptive) -> int:
    return 0 if policy.current is None else policy.candidates.index(policy.current)


def bandit(learner: str, seed: int, rounds: int = 320, period: int = 80) -> float:
    """The mean gain on four arms; the best of them changes every `period` rounds."""
    world = np.random.default_rng(1000 + seed)
    policy = create([Arm() for _ in range(4)], "max gain", learner, seed, delay=1.0, settle=0.0)
    gains = []
    gain = 0.0
    for time in range(rounds):
        policy.decide(Snapshot(TOPOLOGY, float(time), {}, {"gain": gain}))
        means = np.roll([1.0, 0.6, 0.4, 0.2], time // period)
        gain = float(means[index(policy)] + 0.15 * world.standard_normal())
        gains.append(gain)
    return float(np.mean(gains))


def test_the_stronger_learners_beat_roulette_where_the_best_changes() -> None:
    mean = {name: np.mean([bandit(name, seed) for seed in SEEDS]) for name in LEARNERS}
    assert mean["roulette"] > 0.57  # an even draw gains 0.55, always the best 1.0
    assert mean["greedy"] > mean["roulette"] + 0.05
    assert min(mean["ucb"], mean["thompson"]) > mean["roulette"] + 0.15


def queue(policy: Adaptive, seed: int, rounds: int = 400) -> float:
    """The mean queue under a load that wanders; each candidate serves at its own speed and inherits what is left."""
    world = np.random.default_rng(2000 + seed)
    service = [9.0, 12.0, 11.0, 10.0]
    load, queued = 9.0, 0.0
    levels = []
    for time in range(rounds):
        policy.decide(Snapshot(TOPOLOGY, float(time), {}, {"total_queue": queued}))
        load = 9.0 + 0.9 * (load - 9.0) + 0.8 * float(world.standard_normal())
        queued = max(0.0, queued + load - service[index(policy)])
        levels.append(queued)
    return float(np.mean(levels))


@pytest.mark.parametrize("learner", ["ucb", "thompson"])
def test_taking_out_what_was_inherited_keeps_queues_shorter(learner: str) -> None:
    def mean(inherit: bool) -> float:
        policies = [
            create([Arm() for _ in range(4)], "min total_queue", learner, seed, delay=2.0, inherit=inherit)
            for seed in SEEDS
        ]
        return float(np.mean([queue(policy, seed) for seed, policy in zip(SEEDS, policies, strict=True)]))

    assert mean(inherit=True) < 0.8 * mean(inherit=False)


def test_the_stronger_learners_switch_less_than_roulette() -> None:
    def switches(learner: str) -> int:
        policy = create([Arm() for _ in range(4)], "min total_queue", learner, 1, delay=2.0)
        queue(policy, seed=1)
        return sum(choice.chosen != choice.previous for choice in policy.history)

    assert max(switches("ucb"), switches("thompson")) < 0.75 * switches("roulette")
