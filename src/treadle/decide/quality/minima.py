"""Lowers minima if a worker is short of CPU for all of them: those of the sinks with the lowest priorities first.

Stream-Economics leaves this case open. A task shared by several sinks takes less CPU only if all sinks that need most
of it get less; a sink keeps its minimum where lowering it frees no CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.decide.quality import equations
from treadle.decide.quality.flow import Flow
from treadle.model import Bools, Floats

HALVINGS = 20
"""Steps of the bisection in `_part`: precise to a millionth."""
EPSILON = 1e-9


class Needs(NamedTuple):
    """The CPU that tasks of one worker need: for the `whole` of their input, and the `most` that each can use."""

    flow: Flow
    here: Bools
    """By instance: whether it runs on the worker."""
    whole: Floats
    most: Floats

    def of(self, minimum: Floats) -> float:
        """Return the cores that these minima of the sinks take on the worker."""
        least = equations.required(self.flow.upstream(minimum), self.whole, np.ones(1), self.most)
        return float(least[self.flow.task_of][self.here].sum())

    def limits(self, minimum: Floats) -> Floats:
        """By sink: the accuracy that it gets if the tasks on the worker process no more than these minima need."""
        flow, reaches = self.flow, self.flow.reaches
        task = np.repeat(np.arange(len(flow)), np.diff(reaches.starts))
        works = (np.bincount(flow.task_of[self.here], minlength=len(flow)) > 0) & (self.whole > 0.0)
        found = np.full(len(flow.sinks), np.inf)
        np.minimum.at(found, reaches.items[works[task]], flow.upstream(minimum)[task[works[task]]])
        return found


def fitting(needs: Needs, available: float, minimum: Floats) -> tuple[Floats, Floats]:
    """By sink: the highest minimum that `available` cores allow, and the cores missing for its own minimum (0: none).

    Sinks of one priority all get the same share of their minima. The cores missing are what sinks of this and of higher
    priority need beyond `available`, after sinks of lower priority have given up theirs.
    """
    priority = needs.flow.priority[needs.flow.sinks]
    allowed, missing = minimum.copy(), np.zeros(len(minimum))
    for each in np.unique(priority):
        now = needs.of(allowed)
        if now <= available + EPSILON:
            break
        mine = priority == each
        without = np.where(mine, 0.0, allowed)
        allowed = without + _part(needs, available, allowed, without) * (allowed - without)
        missing[mine] = now - available
    allowed = np.minimum(minimum, needs.limits(allowed))  # a cut frees nothing if other sinks need as much
    return allowed, np.where(allowed < minimum - EPSILON, missing, 0.0)


def _part(needs: Needs, available: float, allowed: Floats, without: Floats) -> float:
    """Return the greatest share of the way from `without` to `allowed` for which the `available` CPU suffices."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = needs.of(without + middle * (allowed - without)) <= available
        low, high = (middle, high) if fits else (low, middle)
    return low
