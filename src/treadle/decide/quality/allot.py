"""Who gets the CPU that is left once every minimum is paid for: Stream-Economics, Alg. 1 lines 15 to 19 and Alg. 3.

What one instance gets changes what its sinks can have, and so what the next one needs: the steps depend on each other,
which is why this is a loop, compiled by numba, and not a few operations on arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np

from treadle.decide.quality.flow import Flow, Lists
from treadle.model import Floats, Ints

ROUNDING = 1e-12
"""Of an accuracy, so that what is paid for in full is not held to be a little less."""


def allot(
    flow: Flow,
    workers: Ints,
    cpu: Floats,
    current: Floats,
    least: Floats,
    minimum: Floats,
    available: Floats,
) -> tuple[Floats, Floats]:
    """The accuracy that each sink can have, and the CPU that is left of each worker's `available`.

    By task: the CPU it takes at its `current` accuracy, the `least` CPU it must have, and the `minimum` accuracy which
    that is for. `workers` is where each instance runs.
    """
    priority = flow.priority[flow.task_of]
    order = np.lexsort((workers, -priority))
    reaches: Lists = flow.reaches
    desired = np.ones(len(flow.sinks))
    left = available.copy()
    _allot(
        flow.task_of[order], workers[order], priority[order], reaches.starts, reaches.items, cpu, current, least,
        minimum, left, desired,
    )  # fmt: skip
    return desired, left


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return cast("Callable[..., Any]", numba.njit(cache=True, error_model="numpy")(function))


@_compiled
def _allot(
    task: Ints,
    worker: Ints,
    priority: Floats,
    starts: Ints,
    items: Ints,
    cpu: Floats,
    current: Floats,
    least: Floats,
    minimum: Floats,
    left: Floats,
    desired: Floats,
) -> None:
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
                total += _more(task[i], starts, items, cpu, current, least, desired)
            slack[g] = total - left[worker[firsts[g]]]
        for g in np.argsort(-slack, kind="mergesort"):
            _distribute(
                task, worker, firsts[g], firsts[g + 1], starts, items, cpu, current, least, minimum, left, desired
            )
        at = end


@_compiled
def _distribute(
    task: Ints,
    worker: Ints,
    first: int,
    end: int,
    starts: Ints,
    items: Ints,
    cpu: Floats,
    current: Floats,
    least: Floats,
    minimum: Floats,
    left: Floats,
    desired: Floats,
) -> None:
    """Alg. 3: who needs least first; what it leaves of its even part is for the others."""
    needs = np.empty(end - first)
    for i in range(first, end):
        needs[i - first] = _more(task[i], starts, items, cpu, current, least, desired)
    for done, k in enumerate(np.argsort(needs, kind="mergesort")):
        t, w = task[first + k], worker[first + k]
        need = _more(t, starts, items, cpu, current, least, desired)
        given = min(need, max(left[w], 0.0) / (end - first - done))
        reached = minimum[t] + _obtained(given, cpu[t], current[t])
        for j in range(starts[t], starts[t + 1]):
            desired[items[j]] = min(desired[items[j]], reached)
        left[w] -= given


@_compiled
def _more(t: int, starts: Ints, items: Ints, cpu: Floats, current: Floats, least: Floats, desired: Floats) -> float:
    """Eq. 5, 10 and 12: the CPU that a task could use beyond its least."""
    most = 0.0
    for j in range(starts[t], starts[t + 1]):
        most = max(most, desired[items[j]])
    guess = 1.0 if most > 0.0 else 0.0
    wanted = most * cpu[t] / current[t] if current[t] > 0.0 else guess
    return float(max(0.0, min(wanted, 1.0) - least[t]))


@_compiled
def _obtained(given: float, cpu: float, current: float) -> float:
    """Eq. 11, of what is given on top; a task that takes no CPU at all limits nothing."""
    if current > 0.0 and cpu <= 0.0:
        return 1.0
    if given <= 0.0:
        return 0.0
    return 1.0 if current <= 0.0 else current * given / cpu + ROUNDING
