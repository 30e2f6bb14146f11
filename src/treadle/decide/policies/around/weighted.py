"""Weighted: a weighted mean of several policies. The papers leave mixed goals to future work.

The members' numbers have different units, so they are first scaled to 0..1 by min-max, on logarithms for log spacing.
Min-max keeps distances, which ranks don't, so a mix of one policy is enforced just like that policy. Priority vectors
have no distances and count by their rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from treadle.decide.policies.shared.compose import metrics_of
from treadle.decide.policies.shared.spec import Options, bare
from treadle.decide.policy import Policy
from treadle.decide.transform import unit
from treadle.errors import ConfigError
from treadle.model import Floats
from treadle.values import Schedule, Snapshot

_UNIT = unit()


class Weighted(Policy):
    """Mixes policies: the weighted mean of the members' priorities; a member that does not know a row is left out."""

    name: ClassVar[str] = "weighted"
    optimises: ClassVar[str] = "a mix of its members' goals"
    paper: ClassVar[str] = "Lachesis, AMoS (future work)"

    def __init__(self, members: Sequence[tuple[Policy, float]]) -> None:
        where = f"policy '{self.name}'"
        if not members:
            raise ConfigError("has no members", where=where, remedy="name some, as in weighted:qs=0.7,hr=0.3")
        for policy, weight in members:
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(
                    f"the weight of '{policy.name}' is {weight:g}", where=where, remedy="give a number above 0"
                )
        self._members = tuple(members)
        self.needs, self.wants = metrics_of(policy for policy, _ in members)

    @classmethod
    def from_options(cls, options: Options) -> Weighted:
        return cls([(options.create(bare(key)), options.number(key)) for key in options.unread()])

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedules = [policy.decide(snapshot) for policy, _ in self._members]
        weights = np.array([weight for _, weight in self._members])
        count = len(snapshot.topology)
        with_helpers = any(schedule.helper is not None for schedule in schedules)
        said = np.stack([_UNIT.apply(_numbers(schedule, with_helpers), schedule.spacing) for schedule in schedules])
        mean = _weighted_mean(said, weights)
        parts = " + ".join(f"{weight:g} {policy.name}" for policy, weight in self._members)
        return Schedule(mean[:count], helper=mean[count:] if with_helpers else None, reason=f"mix of {parts}")

    def state(self) -> dict[str, Any]:
        return {"members": [policy.state() for policy, _ in self._members]}

    def load(self, state: dict[str, Any]) -> None:
        for (policy, _), saved in zip(self._members, state["members"], strict=True):
            policy.load(saved)


def _numbers(schedule: Schedule, with_helpers: bool) -> Floats:
    """Return one number per row for main threads, then one per row for helpers, which default to the former."""
    if not with_helpers:
        return schedule.scalar
    return np.concatenate([schedule.scalar, schedule.scalar if schedule.helper is None else schedule.helper])


def _weighted_mean(said: Floats, weights: Floats) -> Floats:
    """Return for each row the weighted mean over the members with a known number; NaN where no member has one."""
    known = ~np.isnan(said)
    weight = weights @ known
    total = weights @ np.where(known, said, 0.0)
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)
