"""Who gets the CPU that is left once every minimum is paid for: Stream-Economics, Alg. 1 lines 15 to 19 and Alg. 3.

What one instance gets changes what its sinks can have, and so what the next one needs: the steps depend on each other,
which is why this is a loop, compiled by numba, and not a few operations on arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.compiled import compiled
from treadle.decide.quality.flow import Flow
from treadle.model import Floats, Ints

ROUNDING = 1e-12
"""Of an accuracy, so that what is paid for in full is not held to be a little less."""


class _Tasks(NamedTuple):
    """By task, but for the last two: what the steps look at, and what they change."""

    starts: Ints
    items: Ints
    """The sinks that each feeds (`Flow.reaches`)."""
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
    """The accuracy that each sink can have, and the CPU that is left of each worker's `available`.

    By task: the CPU that it takes for the `whole` of its input, the `least` that it must have, and the `minimum`
    accuracy which that is for, and the `most` that it can use (a core, if it is not said). `workers` is where each
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
    """Priorities from the highest; of each the workers that lack most come first, so that nothing is taken back."""
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
    """Alg. 3, for one priority on one worker: who needs least first; what it leaves of its part is for the others."""
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
    """Eq. 5, 10 and 12: the CPU that a task could use beyond its least."""
    most = 0.0
    for j in range(tasks.starts[t], tasks.starts[t + 1]):
        most = max(most, tasks.desired[tasks.items[j]])
    return float(max(0.0, min(most * tasks.whole[t], tasks.most[t]) - tasks.least[t]))


@compiled
def _obtained(given: float, whole: float) -> float:
    """Eq. 11, of what is given on top; a task that takes no CPU at all limits nothing."""
    if whole <= 0.0:
        return 1.0
    return given / whole + ROUNDING if given > 0.0 else 0.0
