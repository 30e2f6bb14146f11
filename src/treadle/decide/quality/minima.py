"""Which minima give way on a worker that can't pay for all: those of the sinks with the lowest priorities first.

Stream-Economics leaves this case open. A task that several sinks share takes less CPU only if all of them that need as
much of it give way; a sink for which that changes nothing keeps its minimum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.decide.quality import equations
from treadle.decide.quality.flow import Flow
from treadle.model import Bools, Floats

HALVINGS = 20
"""Of the part of their minima that sinks of one priority can have: to a millionth."""
EPSILON = 1e-9


class Needs(NamedTuple):
    """The CPU of one worker's tasks: for the `whole` of their input, and the `most` that each can use."""

    flow: Flow
    here: Bools
    """By instance: whether it runs on the worker."""
    whole: Floats
    most: Floats

    def of(self, minimum: Floats) -> float:
        """The cores that these minima of the sinks take on the worker."""
        least = equations.required(self.flow.upstream(minimum), self.whole, np.ones(1), self.most)
        return float(least[self.flow.task_of][self.here].sum())

    def limits(self, minimum: Floats) -> Floats:
        """By sink: what the tasks on the worker let through to it if they do no more than these minima take."""
        flow, reaches = self.flow, self.flow.reaches
        task = np.repeat(np.arange(len(flow)), np.diff(reaches.starts))
        works = (np.bincount(flow.task_of[self.here], minlength=len(flow)) > 0) & (self.whole > 0.0)
        found = np.full(len(flow.sinks), np.inf)
        np.minimum.at(found, reaches.items[works[task]], flow.upstream(minimum)[task[works[task]]])
        return found


def fitting(needs: Needs, available: float, minimum: Floats) -> tuple[Floats, Floats]:
    """By sink: the highest minimum that so many cores pay for, and the cores that its own one lacks (0: none).

    Sinks of one priority all get the same part of what they were promised. A sink lacks what it and all of higher
    priorities take beyond what there is, and all of lower ones don't have any more.
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
    allowed = np.minimum(minimum, needs.limits(allowed))  # for some it was in vain: others need as much of their tasks
    return allowed, np.where(allowed < minimum - EPSILON, missing, 0.0)


def _part(needs: Needs, available: float, allowed: Floats, without: Floats) -> float:
    """Of the way from nothing to all that is allowed, for the sinks that give way."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = needs.of(without + middle * (allowed - without)) <= available
        low, high = (middle, high) if fits else (low, middle)
    return low
