"""AMoS: a policy that puts one of several policies in charge and learns which serves the objectives best (section 3).

Of a snapshot it reads only time and totals. The candidate in charge makes the schedule, so any policy can be one.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from treadle.decide.adaptive.interval import Gauge
from treadle.decide.adaptive.learned_file import LearnedFile
from treadle.decide.adaptive.learner import Learner
from treadle.decide.adaptive.memory import Memory
from treadle.decide.adaptive.objectives import Objective, Spec, parse_objectives
from treadle.decide.policy import Policy
from treadle.errors import ConfigError, EngineError
from treadle.values import Schedule, Snapshot

log = logging.getLogger(__name__)
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
        candidates: Mapping[str, Policy] | Sequence[Policy],
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
        learned: str | Path | None = None,
    ) -> None:
        """Create a policy that chooses among `candidates`, which may be given by label, by one learner.

        - `delay`: the seconds for which a candidate is kept before it is reassessed, the paper's delay threshold.
        - `warm_up`: rounds in which every candidate runs once, in order, before the learner chooses.
        - `settle`: the share of the first interval after a switch that is not counted.
        - `decay`: the weight of the old score in Eq. 1.
        - `discount`: the factor on the history's weight and range at each assessment; 1 is the paper's.
        - `memory`: how many intervals and choices are remembered.
        - `learned`: the file in which measurements are kept for the next start (see `learned_file`).
        """
        _check_numbers(delay, warm_up, settle, decay, discount, memory)
        self.delay = delay
        self.warm_up = warm_up
        self.settle = settle
        self.learner = learner
        self.history: deque[Choice] = deque(maxlen=memory)
        self._rng = rng
        self._memory = Memory(decay=decay, discount=discount, inherit=inherit, size=memory)
        self._file = None if learned is None else LearnedFile(learned)
        self._began = self._unsaved = False
        self._chosen: Counter[str] = Counter()
        self._candidates: dict[str, Policy] = {}
        self._current: str | None = None
        self._gauge: Gauge | None = None
        self._reason = ""
        self._totals: frozenset[str] = frozenset()
        self.spec: str | None = None
        """The text that this policy was made from, if it was."""
        self.set_objectives(objectives)
        self.set_candidates(candidates if isinstance(candidates, Mapping) else {})
        for policy in () if isinstance(candidates, Mapping) else candidates:
            self.add(policy)
        self._renewed = False
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
    def measured(self) -> frozenset[str]:
        """The totals that the engine had in the last round; empty before the first one."""
        return self._totals

    @property
    def scores(self) -> dict[str, float]:
        """Eq. 2's score of each candidate."""
        values = self._memory.scores(self.candidates, self._objectives)
        return dict(zip(self._candidates, values.tolist(), strict=True))

    def set_objectives(self, objectives: str | Iterable[Spec]) -> None:
        """Score by these objectives from now on, also what was measured before.

        The next round chooses anew, without waiting for the end of the interval, if all candidates are measured.
        """
        self._objectives = parse_objectives(objectives)
        self._vetted, self._renewed = False, True

    def set_candidates(self, candidates: Mapping[str, Policy]) -> None:
        """Choose among these, by label, from the next round on; this may change `needs` and `wants`.

        All measurements are kept, so only candidates that were never measured get a warm-up.
        """
        self._candidates = dict(candidates)
        if self._current not in self._candidates:
            self._current = self._gauge = None
        self._renew_needs()

    def add(self, policy: Policy) -> str:
        """Add a candidate, which gets its warm-up next, and return its label. This may extend `needs` and `wants`."""
        label = policy.name
        number = 2
        while label in self._candidates:
            label = f"{policy.name}#{number}"
            number += 1
        self.set_candidates({**self._candidates, label: policy})
        return label

    def remove(self, label: str) -> None:
        """Remove a candidate; if it is in charge, the next round chooses another."""
        known = ", ".join(self._candidates)
        if label not in self._candidates:
            raise ConfigError(f"'{label}' is not a candidate", where=_WHERE, remedy=f"use one of {known}")
        if len(self._candidates) == 1:
            raise ConfigError(f"'{label}' is the last candidate", where=_WHERE, remedy="add another one first")
        self.set_candidates({name: policy for name, policy in self._candidates.items() if name != label})

    def sibling(self, objectives: Iterable[Spec] = (), candidates: Mapping[str, Policy] | None = None) -> Adaptive:
        """Return a policy with other objectives or candidates and no measurements, to check whether it could run."""
        return Adaptive(
            self._candidates if candidates is None else candidates,
            tuple(objectives) or self._objectives,
            self.learner,
            self._rng,
            delay=self.delay,
        )

    def keep_no_file(self) -> None:
        """Neither read nor write the learned file: in a dry run, what is measured is not the candidates' doing."""
        self._file = None

    def check_objectives(self, measured: Collection[str], what: str) -> None:
        """Raise ConfigError, before anything runs, for an objective that is not in `measured`."""
        for objective in self._objectives:
            if objective.metric not in measured:
                known = ", ".join(sorted(measured))
                problem = f"objective '{objective.metric}' is not measured for {what}"
                raise ConfigError(problem, where=_WHERE, remedy=f"use one of {known}")

    def decide(self, snapshot: Snapshot) -> Schedule:
        if not self._began:
            self._began = True
            self._recall()
        self._vet(snapshot.totals)
        schedule = self._candidates[self._in_charge(snapshot)].decide(snapshot)
        inner = f"; {schedule.reason}" if schedule.reason else ""
        return replace(schedule, reason=self._reason + inner)

    def status(self) -> dict[str, Any]:
        """Return objectives, candidates and the choice, as JSON values. Any thread may call this.

        Of each candidate: Eq. 2's score (None before it was measured), how often it was chosen since the start, and for
        how many intervals it was measured, also in earlier runs.
        """
        candidates, history = self._candidates, self.history
        scores = self._memory.scores(tuple(candidates), self._objectives).tolist()
        return {
            "objectives": [str(objective) for objective in self._objectives],
            "candidates": {
                label: {
                    "score": round(score, 4) if self._memory.knows(label) else None,
                    "chosen": self._chosen[label],
                    "measured": self._memory.runs.get(label, 0),
                }
                for label, score in zip(candidates, scores, strict=True)
            },
            "in_charge": self._current,
            "why": history[-1].reason if history else "no round yet",
            "learned": None if self._file is None else str(self._file.path),
        }

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
        """Continue from a saved state. Candidates are matched by label; those without measurements warm up."""
        try:
            objectives = parse_objectives(state["objectives"])
            self._memory.load(state["memory"])
            self._objectives, self._vetted = objectives, False
            for label, saved in state["candidates"].items():
                if label in self._candidates:
                    self._candidates[label].load(saved)
            self._current = state["current"] if state["current"] in self._candidates else None
            self._reason = str(state["reason"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the saved state can't be read: {error!r}",
                where=_WHERE,
                remedy="delete it to learn from the beginning",
            ) from error
        self._gauge = None

    def rest(self) -> None:
        """Write what was measured since the last write to the learned file."""
        if self._file is not None and self._unsaved:
            self._unsaved = False
            self._file.write(self._memory.state())
        for policy in self._candidates.values():
            policy.rest()

    def _recall(self) -> None:
        """Take over the measurements of the learned file; warn once about what it does not have."""
        saved = None if self._file is None else self._file.read()
        if self._file is None or saved is None:
            return
        try:
            self._memory.load(saved)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            self._file.refuse("it is damaged", "delete it")
            return
        lacks = [f"candidate '{label}'" for label in self._candidates if not self._memory.knows(label)]
        lacks += [f"objective '{o.metric}'" for o in self._objectives if o.metric not in self._memory.history]
        where, known = self._file.path, ", ".join(self._memory.runs)
        if lacks:
            log.warning("learned '%s' has measurements of %s, but none of %s", where, known, " and ".join(lacks))
        else:
            log.info("learned '%s' has measurements of %s", where, known)

    def _vet(self, totals: Mapping[str, float]) -> None:
        """Check on the first snapshot that the engine has the totals of all objectives; later gaps count as unknown."""
        self._totals = frozenset(totals)
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
        if snapshot.time - gauge.since >= self.delay * (1 - 1e-9):  # sums of periods have rounding errors
            self._memory.take(current, gauge.start, gauge.seen)
            self._unsaved = True
            if self._file is not None:
                self._file.write_sometimes(self._memory.state)
            return self._choose(snapshot)
        if self._renewed and all(self._memory.knows(label, self.warm_up) for label in self._candidates):
            return self._reconsider(snapshot)
        return current

    def _choose(self, snapshot: Snapshot) -> str:
        """Choose the next candidate, record it and begin an interval; one that stays needs no `settle`."""
        return self._put_in_charge(snapshot, *self._next())

    def _reconsider(self, snapshot: Snapshot) -> str:
        """Choose by new objectives within an interval, which goes on if its candidate stays and is dropped if not."""
        chosen, reason = self._next()
        return chosen if chosen == self._current else self._put_in_charge(snapshot, chosen, reason)

    def _put_in_charge(self, snapshot: Snapshot, chosen: str, reason: str) -> str:
        previous = self._current
        self._current = chosen
        self._chosen[chosen] += 1
        choice = Choice(snapshot.time, chosen, previous, self.scores, reason)
        self.history.append(choice)
        self._reason = f"{chosen} in charge ({reason})"
        self._begin(snapshot, 0.0 if chosen == previous else self.settle)
        record = {"policy": self.name, "at": choice.time, "chosen": chosen, "previous": previous}
        log.log(
            logging.DEBUG if chosen == previous else logging.INFO,
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
        why = ", by new objectives" if self._renewed else ""
        self._renewed = False
        return labels[pick.index], f"{self.learner.name}: {pick.reason}{why}"

    def _begin(self, snapshot: Snapshot, settle: float) -> None:
        self._gauge = Gauge(snapshot.time, snapshot.time + settle * self.delay, snapshot.totals)

    def _renew_needs(self) -> None:
        policies = self._candidates.values()
        self.needs = tuple(dict.fromkeys(metric for policy in policies for metric in policy.needs))
        wants = dict.fromkeys(metric for policy in policies for metric in policy.wants)
        self.wants = tuple(metric for metric in wants if metric not in self.needs)


def _check_numbers(delay: float, warm_up: int, settle: float, decay: float, discount: float, memory: int) -> None:
    _check("delay", delay, delay > 0 and math.isfinite(delay), "choose some seconds, for instance 2")
    _check("warm_up", warm_up, warm_up >= 0, "choose 1, or 0 for none")
    _check("settle", settle, 0 <= settle < 1, "choose it from 0 to below 1")
    _check("decay", decay, 0 <= decay < 0.5, "choose it from 0 to below 0.5")
    _check("discount", discount, 0 < discount <= 1, "choose it above 0 and up to 1")
    _check("memory", memory, memory >= 1, "choose some hundred intervals")


def _check(what: str, value: float, holds: bool, remedy: str) -> None:
    if not holds:
        raise ConfigError(f"{what} is {value:g}", where=_WHERE, remedy=remedy)
