"""Multi-Class: queries of a higher class always before those of a lower, with a policy inside each (Haren section 7.4).

The class of a query is its user priority; the inner policy of a class orders its operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from treadle.decide.policies.fcfs import Fcfs
from treadle.decide.policies.highest_rate import HighestRate
from treadle.decide.policies.shared.columns import rows_of
from treadle.decide.policies.shared.compose import mains_and_helpers, metrics_of, padded
from treadle.decide.policies.shared.spec import Options, bare
from treadle.decide.policy import Policy
from treadle.errors import ConfigError
from treadle.model import Floats, Ints
from treadle.values import Schedule, Snapshot, dense_rank


class MultiClass(Policy):
    """Classes first, then FCFS within the highest class and HR within the others, unless other policies are given.

    `high` is for the class that is the highest at the moment, `low` for the others, `classes` for the classes it names.
    The numbers of two inner policies are never compared, since they are for different classes.
    """

    name: ClassVar[str] = "multi-class"
    aliases: ClassVar[tuple[str, ...]] = ("mc",)
    optimises: ClassVar[str] = "per class: maximum or mean latency"
    paper: ClassVar[str] = "Haren 7.4"
    needs: tuple[str, ...] = ("head_age", "global_rate")
    wants: tuple[str, ...] = ("queue",)

    def __init__(
        self, high: Policy | None = None, low: Policy | None = None, classes: Mapping[float, Policy] | None = None
    ) -> None:
        self._high = high or Fcfs()
        self._low = low or HighestRate()
        self._classes = dict(classes or {})
        self.needs, self.wants = metrics_of(self._inner().values())

    @classmethod
    def from_options(cls, options: Options) -> MultiClass:
        high, low = options.policy("high", "fcfs"), options.policy("low", "highest-rate")
        named = {_class_of(key): options.create(bare(options.text(key))) for key in options.unread()}
        return cls(high, low, named)

    def decide(self, snapshot: Snapshot) -> Schedule:
        classes, of_row = np.unique(snapshot.topology.priority, return_inverse=True)
        chosen = [self._policy(value, value == classes[-1]) for value in classes.tolist()]
        distinct = {id(policy): policy for policy in chosen}  # a policy for two classes decides once
        schedules = {key: policy.decide(snapshot) for key, policy in distinct.items()}
        of_class = [schedules[id(policy)] for policy in chosen]
        reason = "; ".join(
            f"class {v:g} by {p.name}" for v, p in zip(classes.tolist()[::-1], chosen[::-1], strict=True)
        )
        pairs = [mains_and_helpers(schedule) for schedule in of_class]
        priority = _stack(classes, of_row, [mains for mains, _ in pairs])
        if all(schedule.helper is None for schedule in of_class):
            return Schedule(priority, reason=reason)
        helper = _stack(classes, of_row, [helpers for _, helpers in pairs])
        ranks = dense_rank(np.vstack([priority, helper]))  # a helper has one number, so the mains get one too
        return Schedule(ranks[: len(of_row)], helper=ranks[len(of_row) :], reason=reason)

    def state(self) -> dict[str, Any]:
        return {name: policy.state() for name, policy in self._inner().items()}

    def load(self, state: dict[str, Any]) -> None:
        for name, policy in self._inner().items():
            policy.load(state[name])

    def _policy(self, value: float, is_highest: bool) -> Policy:
        return self._classes.get(value, self._high if is_highest else self._low)

    def _inner(self) -> dict[str, Policy]:
        named = {f"{value:g}": policy for value, policy in self._classes.items()}
        return {"high": self._high, "low": self._low, **named}


def _stack(classes: Floats, of_row: Ints, inner: Sequence[Floats]) -> Floats:
    """Return for each row its class, followed by the vector from the policy of that class."""
    width = max((vectors.shape[1] for vectors in inner), default=1)
    within = np.empty((len(of_row), width))
    for index, vectors in enumerate(inner):
        rows = np.flatnonzero(of_row == index)
        within[rows] = padded(vectors[rows], width)
    return rows_of(classes[of_row], within)


def _class_of(key: str) -> float:
    try:
        return float(key)
    except ValueError:
        raise ConfigError(
            f"'{key}' is not a class", where=f"policy '{MultiClass.name}'", remedy="use high, low or a query's priority"
        ) from None
