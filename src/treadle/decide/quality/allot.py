"""Allots the CPU that is left after all minima are met: Stream-Economics, Alg. 1 lines 15 to 19 and Alg. 3.

CPU for one instance changes what its sinks can have, and so what the next instance needs. Since the steps depend on
each other, this is a loop, compiled by numba, and not a few operations on arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.compiled import compiled
from treadle.decide.quality.flow import Flow
from treadle.model import Floats, Ints

ROUNDING = 1e-12
"""Added to an accuracy, so that rounding does not put it below what its CPU gives."""


class _Tasks(NamedTuple):
    """Input and state of the steps, by task unless stated otherwise."""

    starts: Ints
    items: Ints
    """The sinks that each task feeds (`Flow.reaches`)."""
    whole: Floats
    least: Floats
    minimum: Floats
    most: Floats
    left: Floats
    """By worker: the CPU that is left."""
    desired: Floats
    """By sink: the accuracy that it can have."""


def allot(
    flow: Flow,
    workers: Ints,
    whole: Floats,
    least: Floats,
    minimum: Floats,
    available: Floats,
    most: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Return the accuracy that each sink can have, and the CPU that remains of each worker's `available`.

    By task: `whole` is the CPU for all of its input, `least` the CPU for its `minimum` accuracy, and `most` the CPU
    that it can use (default: a core). `available` is the CPU of workers after all `least`; `workers` is where each
    instance runs.
    """
    priority = flow.priority[flow.task_of]
    order = np.lexsort((workers, -priority))
    limit = np.ones(len(flow)) if most is None else most
    tasks = _Tasks(*flow.reaches, whole, least, minimum, limit, available.copy(), np.ones(len(flow.sinks)))
    _allot(flow.task_of[order], workers[order], priority[order], tasks)
    return tasks.desired, tasks.left


@compiled
def _allot(task: Ints, worker: Ints, priority: Floats, tasks: _Tasks) -> None:
    """Serve the highest priority first, and within it the workers that lack most CPU: so no CPU is taken back."""
    n = len(task)
    at = 0
    while at < n:
        end = at
        firsts = [at]
        while end < n and priority[end] == priority[at]:
            if worker[end] != worker[firsts[-1]]:
                firsts.append(end)
            end += 1
        firsts.append(end)
        groups = len(firsts) - 1
        slack = np.empty(groups)
        for g in range(groups):
            total = 0.0
            for i in range(firsts[g], firsts[g + 1]):
                total += _more(task[i], tasks)
            slack[g] = total - tasks.left[worker[firsts[g]]]
        for g in np.argsort(-slack, kind="mergesort"):
            _distribute(task[firsts[g] : firsts[g + 1]], worker[firsts[g]], tasks)
        at = end


@compiled
def _distribute(task: Ints, worker: int, tasks: _Tasks) -> None:
    """Alg. 3, for one priority on one worker: the least need first, each with an equal part of the CPU that is left."""
    needs = np.empty(len(task))
    for i in range(len(task)):
        needs[i] = _more(task[i], tasks)
    for done, i in enumerate(np.argsort(needs, kind="mergesort")):
        t = task[i]
        given = min(_more(t, tasks), max(tasks.left[worker], 0.0) / (len(task) - done))
        reached = tasks.minimum[t] + _obtained(given, tasks.whole[t])
        for j in range(tasks.starts[t], tasks.starts[t + 1]):
            tasks.desired[tasks.items[j]] = min(tasks.desired[tasks.items[j]], reached)
        tasks.left[worker] -= given


@compiled
def _more(t: int, tasks: _Tasks) -> float:
    """Eq. 5, 10 and 12: the CPU that a task can use beyond `least`."""
    most = 0.0
    for j in range(tasks.starts[t], tasks.starts[t + 1]):
        most = max(most, tasks.desired[tasks.items[j]])
    return float(max(0.0, min(most * tasks.whole[t], tasks.most[t]) - tasks.least[t]))


@compiled
def _obtained(given: float, whole: float) -> float:
    """Eq. 11: the accuracy that CPU beyond `least` gives; a task that uses no CPU limits nothing."""
    if whole <= 0.0:
        return 1.0
    return given / whole + ROUNDING if given > 0.0 else 0.0
