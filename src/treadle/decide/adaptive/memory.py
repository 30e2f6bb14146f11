"""The record of all candidates: history, scores and the last intervals.

The history consists of AMoS' synopses (section 3.3). A limited number of intervals is kept beside it, so that evidence
can be recomputed when the objectives, the candidates or the scale of the history change.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from treadle.decide.adaptive.inheritance import adjusted
from treadle.decide.adaptive.interval import Interval
from treadle.decide.adaptive.learner import Evidence
from treadle.decide.adaptive.objectives import Objective
from treadle.decide.adaptive.score import Synopsis, algorithm_score, normalised, statistic_score, update
from treadle.model import Floats, Ints

_LEFT_BEHIND = ("total_queue",)
"""Totals that an algorithm leaves to the next and that change the other totals: old tuples in a queue raise the
latency."""


class Memory:
    """Takes finished intervals and gives evidence. Candidates are identified by their labels."""

    def __init__(self, *, decay: float, discount: float, inherit: bool, size: int) -> None:
        self.decay = decay
        self.discount = discount
        self.inherit = inherit
        self.runs: dict[str, int] = {}
        self.history: dict[str, Synopsis] = {}
        self._z: dict[str, dict[str, float]] = {}
        self._intervals: deque[Interval] = deque(maxlen=size)

    def take(self, candidate: str, start: Mapping[str, float], seen: Mapping[str, Synopsis]) -> None:
        """Record a finished interval: update the history first, then the scores of the candidate that ran (Eq. 1)."""
        self.runs[candidate] = self.runs.get(candidate, 0) + 1
        level = {name: synopsis.mean for name, synopsis in seen.items()}
        self._intervals.append(Interval(candidate, dict(start), level))
        known = self._z.setdefault(candidate, {})
        who = self._who()
        for name, synopsis in seen.items():
            self.history[name] = update(self.history.get(name), synopsis, self.discount)
            last = float(self._levels(name, who)[-1])
            known[name] = statistic_score(last, self.history[name], known.get(name), self.decay)

    def scores(self, labels: Sequence[str], objectives: Sequence[Objective]) -> Floats:
        """Return Eq. 2 for each candidate, 1 for one that has not run."""
        return np.array([algorithm_score(objectives, self._z.get(label, {})) for label in labels])

    def evidence(self, labels: Sequence[str], objectives: Sequence[Objective], current: str | None) -> Evidence:
        """Return all that a learner may use, without the intervals in which no objective is known."""
        who = self._who()
        total = np.ones(len(who))
        known = np.zeros(len(who), dtype=np.bool_)
        for objective in objectives:
            if objective.metric in self.history:
                z = normalised(self._levels(objective.metric, who), self.history[objective.metric])
                total += np.nan_to_num(z) * objective.sign * objective.weight
                known |= np.isfinite(z)
        index = {label: i for i, label in enumerate(labels)}
        chosen = np.array([index.get(interval.candidate, -1) for interval in self._intervals], dtype=np.int64)
        use = known & (chosen >= 0)
        in_charge = None if current is None else index.get(current)
        return Evidence(self.scores(labels, objectives), chosen[use], total[use], in_charge)

    def knows(self, candidate: str, times: int = 1) -> bool:
        """Whether a candidate was in charge for so many whole intervals."""
        return self.runs.get(candidate, 0) >= times

    def state(self) -> dict[str, Any]:
        return {
            "runs": dict(self.runs),
            "history": {name: list(astuple(synopsis)) for name, synopsis in self.history.items()},
            "z": {label: dict(z) for label, z in self._z.items()},
            "intervals": [[i.candidate, dict(i.start), dict(i.level)] for i in self._intervals],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, or raise an error of Python's and change nothing."""
        runs = {str(label): int(count) for label, count in state["runs"].items()}
        history = {str(name): Synopsis(*_numbers(parts)) for name, parts in state["history"].items()}
        z = {str(label): _floats(known) for label, known in state["z"].items()}
        intervals = [Interval(str(who), _floats(start), _floats(level)) for who, start, level in state["intervals"]]
        if min(runs.values(), default=0) < 0 or not all(map(_is_sound, history.values())):
            raise ValueError("numbers that can't be")
        self.runs, self.history, self._z = runs, history, z
        self._intervals = deque(intervals, maxlen=self._intervals.maxlen)

    def _who(self) -> Ints:
        """Return a number for the candidate of each interval, equal for equal labels."""
        number: dict[str, int] = {}
        return np.array([number.setdefault(i.candidate, len(number)) for i in self._intervals], dtype=np.int64)

    def _levels(self, metric: str, who: Ints) -> Floats:
        """Return the levels of a total in all intervals, NaN where unknown; with `inherit`, adjusted for the start."""
        level = np.array([interval.level.get(metric, np.nan) for interval in self._intervals])
        if not self.inherit:
            return level
        found = dict.fromkeys((metric, *_LEFT_BEHIND))
        start = np.array([[interval.start.get(name, np.nan) for name in found] for interval in self._intervals])
        return adjusted(who, start, level)


def _floats(saved: Mapping[str, Any]) -> dict[str, float]:
    return dict(zip(map(str, saved), _numbers(saved.values()), strict=True))


def _numbers(saved: Iterable[Any]) -> list[float]:
    numbers = [float(value) for value in saved]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number that is not finite")
    return numbers


def _is_sound(synopsis: Synopsis) -> bool:
    return synopsis.count > 0 and synopsis.low <= synopsis.mean <= synopsis.high
