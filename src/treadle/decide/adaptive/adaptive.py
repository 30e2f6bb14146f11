"""AMoS: a policy that puts one of several policies in charge and learns which serves the objectives best (section 3).

Of a snapshot it reads only time and totals. The candidate in charge makes the schedule, so any policy can be one.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from treadle.decide.adaptive.interval import Gauge
from treadle.decide.adaptive.learner import Learner
from treadle.decide.adaptive.memory import Memory
from treadle.decide.adaptive.objectives import Objective, Spec, parse_objectives
from treadle.decide.policy import Policy
from treadle.errors import ConfigError, EngineError
from treadle.values import Schedule, Snapshot

_log = logging.getLogger(__name__)
_WHERE = "policy 'adaptive'"


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate that was put in charge, when and why, with Eq. 2's scores of all candidates at that moment."""

    time: float
    chosen: str
    previous: str | None
    scores: Mapping[str, float]
    reason: str


class Adaptive(Policy):
    """The meta-policy. With roulette, `settle=0` and `inherit=False` it is the paper's; the defaults are fairer.

    A candidate inherits the queue of its predecessor (section 3.5, issue 3). Two things keep that queue out of its
    score. The first part of the interval after a switch, `settle`, is not counted. With `inherit`, the effect of the
    state at the start on the mean of the interval is estimated and subtracted (see `inheritance`). In trials under
    changing load this brought the learners closer to the best single policy than two simpler scores did: the mean, and
    the sum of the mean and the change over the interval.
    """

    name: ClassVar[str] = "adaptive"

    def __init__(
        self,
        candidates: Sequence[Policy],
        objectives: str | Iterable[Spec],
        learner: Learner,
        rng: np.random.Generator,
        *,
        delay: float = 2.0,
        warm_up: int = 1,
        settle: float = 0.3,
        decay: float = 0.3,
        discount: float = 1.0,
        inherit: bool = True,
        memory: int = 256,
    ) -> None:
        """Create a policy that chooses among `candidates` by one learner.

        - `delay`: the seconds for which a candidate is kept before it is reassessed, the paper's delay threshold.
        - `warm_up`: rounds in which every candidate runs once, in order, before the learner chooses.
        - `settle`: the share of the first interval after a switch that is not counted.
        - `decay`: the weight of the old score in Eq. 1.
        - `discount`: the factor on the history's weight and range at each assessment; 1 is the paper's.
        - `memory`: how many intervals and choices are remembered.
        """
        _check("delay", delay, delay > 0 and math.isfinite(delay), "choose some seconds, for instance 2")
        _check("warm_up", warm_up, warm_up >= 0, "choose 1, or 0 for none")
        _check("settle", settle, 0 <= settle < 1, "choose it from 0 to below 1")
        _check("decay", decay, 0 <= decay < 0.5, "choose it from 0 to below 0.5")
        _check("discount", discount, 0 < discount <= 1, "choose it above 0 and up to 1")
        _check("memory", memory, memory >= 1, "choose some hundred intervals")
        self.delay = delay
        self.warm_up = warm_up
        self.settle = settle
        self.learner = learner
        self.history: deque[Choice] = deque(maxlen=memory)
        self._rng = rng
        self._memory = Memory(decay=decay, discount=discount, inherit=inherit, size=memory)
        self._candidates: dict[str, Policy] = {}
        self._current: str | None = None
        self._gauge: Gauge | None = None
        self._reason = ""
        self.set_objectives(objectives)
        for policy in candidates:
            self.add(policy)
        if not self._candidates:
            raise ConfigError("has no candidates", where=_WHERE, remedy="name at least one policy to choose from")

    @property
    def current(self) -> str | None:
        """The label of the candidate in charge; None before the first round."""
        return self._current

    @property
    def candidates(self) -> tuple[str, ...]:
        """The labels of the candidates: the names of the policies, numbered where a name occurs twice."""
        return tuple(self._candidates)

    @property
    def policies(self) -> Mapping[str, Policy]:
        """The candidates by their labels."""
        return dict(self._candidates)

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives of the scores, with weights that sum to 1."""
        return self._objectives

    @property
    def scores(self) -> dict[str, float]:
        """Eq. 2's score of each candidate."""
        values = self._memory.scores(self.candidates, self._objectives)
        return dict(zip(self._candidates, values.tolist(), strict=True))

    def set_objectives(self, objectives: str | Iterable[Spec]) -> None:
        """Score by these objectives from now on, also the intervals already recorded."""
        self._objectives = parse_objectives(objectives)
        self._vetted = False

    def add(self, policy: Policy) -> str:
        """Add a candidate, which gets its warm-up next, and return its label. This may extend `needs` and `wants`."""
        label = policy.name
        number = 2
        while label in self._candidates:
            label = f"{policy.name}#{number}"
            number += 1
        self._candidates[label] = policy
        self._renew_needs()
        return label

    def remove(self, label: str) -> None:
        """Remove a candidate; if it is in charge, the next round chooses another."""
        known = ", ".join(self._candidates)
        if label not in self._candidates:
            raise ConfigError(f"'{label}' is not a candidate", where=_WHERE, remedy=f"use one of {known}")
        if len(self._candidates) == 1:
            raise ConfigError(f"'{label}' is the last candidate", where=_WHERE, remedy="add another one first")
        del self._candidates[label]
        self._memory.forget(label)
        if self._current == label:
            self._current = self._gauge = None
        self._renew_needs()

    def check_objectives(self, measured: Collection[str], what: str) -> None:
        """Raise ConfigError, before anything runs, for an objective that is not in `measured`."""
        for objective in self._objectives:
            if objective.metric not in measured:
                known = ", ".join(sorted(measured))
                problem = f"objective '{objective.metric}' is not measured for {what}"
                raise ConfigError(problem, where=_WHERE, remedy=f"use one of {known}")

    def decide(self, snapshot: Snapshot) -> Schedule:
        self._vet(snapshot.totals)
        schedule = self._candidates[self._in_charge(snapshot)].decide(snapshot)
        inner = f"; {schedule.reason}" if schedule.reason else ""
        return replace(schedule, reason=self._reason + inner)

    def state(self) -> dict[str, Any]:
        """Return all that was learned, without the unfinished interval and the random generator."""
        return {
            "current": self._current,
            "reason": self._reason,
            "objectives": [asdict(objective) for objective in self._objectives],
            "memory": self._memory.state(),
            "candidates": {label: policy.state() for label, policy in self._candidates.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. Candidates are matched by label: new ones warm up, missing ones are dropped."""
        try:
            objectives = parse_objectives(state["objectives"])
            self._memory.load(state["memory"])
            self._objectives, self._vetted = objectives, False
            for label, saved in state["candidates"].items():
                if label in self._candidates:
                    self._candidates[label].load(saved)
                else:
                    self._memory.forget(label)
            self._current = state["current"] if state["current"] in self._candidates else None
            self._reason = str(state["reason"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the saved state can't be read: {error!r}",
                where=_WHERE,
                remedy="delete it to learn from the beginning",
            ) from error
        self._gauge = None

    def _vet(self, totals: Mapping[str, float]) -> None:
        """Check on the first snapshot that the engine has the totals of all objectives; later gaps count as unknown."""
        if self._vetted:
            return
        for objective in self._objectives:
            if objective.metric not in totals:
                raise EngineError(
                    f"objective '{objective.metric}' is not among the engine's totals",
                    where=_WHERE,
                    remedy=f"use one of {', '.join(sorted(totals))}" if totals else "this engine offers no totals",
                )
        self._vetted = True

    def _in_charge(self, snapshot: Snapshot) -> str:
        """Return the candidate for this round: the current one, until `delay` has passed and its interval is scored."""
        current, gauge = self._current, self._gauge
        if current is None:
            return self._choose(snapshot)
        if gauge is None or snapshot.time < gauge.since:  # loaded, or the clock was set back
            self._begin(snapshot, self.settle)
            return current
        gauge.add(snapshot.time, snapshot.totals)
        if snapshot.time - gauge.since < self.delay * (1 - 1e-9):  # sums of periods have rounding errors
            return current
        self._memory.take(current, gauge.start, gauge.seen)
        return self._choose(snapshot)

    def _choose(self, snapshot: Snapshot) -> str:
        """Choose the next candidate, record it and begin an interval; one that stays needs no `settle`."""
        previous = self._current
        chosen, reason = self._next()
        self._current = chosen
        choice = Choice(snapshot.time, chosen, previous, self.scores, reason)
        self.history.append(choice)
        self._reason = f"{chosen} in charge ({reason})"
        self._begin(snapshot, 0.0 if chosen == previous else self.settle)
        record = {"policy": self.name, "at": choice.time, "chosen": chosen, "previous": previous}
        _log.info(
            "%s %s: %s",
            chosen,
            "stays" if chosen == previous else "takes over",
            reason,
            extra={**record, "scores": choice.scores, "reason": reason},
        )
        return chosen

    def _next(self) -> tuple[str, str]:
        labels = self.candidates
        runs = [self._memory.runs.get(label, 0) for label in labels]
        if min(runs) < self.warm_up:
            index = runs.index(min(runs))
            return labels[index], f"warm-up, run {runs[index] + 1} of {self.warm_up}"
        pick = self.learner.choose(self._memory.evidence(labels, self._objectives, self._current), self._rng)
        return labels[pick.index], f"{self.learner.name}: {pick.reason}"

    def _begin(self, snapshot: Snapshot, settle: float) -> None:
        self._gauge = Gauge(snapshot.time, snapshot.time + settle * self.delay, snapshot.totals)

    def _renew_needs(self) -> None:
        policies = self._candidates.values()
        self.needs = tuple(dict.fromkeys(metric for policy in policies for metric in policy.needs))
        wants = dict.fromkeys(metric for policy in policies for metric in policy.wants)
        self.wants = tuple(metric for metric in wants if metric not in self.needs)


def _check(what: str, value: float, holds: bool, remedy: str) -> None:
    if not holds:
        raise ConfigError(f"{what} is {value:g}", where=_WHERE, remedy=remedy)
