"""The equations of Stream-Economics (section 3) as functions of arrays: accuracy from rates, CPU for an accuracy.

CPU is in cores; an instance can use at most 1 unless stated otherwise. Accuracy is 0 to 1. Eq. 1, 2, 5 and 14 are
`Flow.upstream`; `controller` distributes the CPU.
"""

from __future__ import annotations

import numpy as np

from treadle.decide.quality.flow import Flow
from treadle.model import Floats

CORE = 1.0


def local_accuracy(flow: Flow, in_rate: Floats, out_rate: Floats, arriving: Floats) -> Floats:
    """Eq. 4: the input of the slowest instance of a task, divided by its equal part of all that is sent to the task.

    `in_rate` is by instance. `out_rate` is by task and includes rows that are shed afterwards; `arriving` is what a
    source gets from outside. The result is 1 if nothing is sent or no instance runs, and above 1 if a task works off a
    backlog.
    """
    even = sent(flow, out_rate, arriving) / np.maximum(flow.copies, 1)
    told = (even > 0.0) & (flow.copies > 0)
    return np.where(told, least_of_tasks(flow, in_rate) / np.where(told, even, 1.0), 1.0)


def sent(flow: Flow, out_rate: Floats, arriving: Floats) -> Floats:
    """Return what is sent to each task, by others or from outside: every reader of a stream gets all of it."""
    found = np.zeros(len(flow))
    np.add.at(found, flow.end, out_rate[flow.start])
    found[flow.sources] = arriving[flow.sources]
    return found


def current_accuracy(flow: Flow, local: Floats) -> Floats:
    """Eq. 3: the share of the application's input that a task processes, on its least accurate path."""
    return flow.downstream(local)


def cpu_of_tasks(flow: Flow, in_rate: Floats, cpu: Floats) -> Floats:
    """Eq. 6: by task, the CPU of its instance with the least input, the one that Eq. 4 uses."""
    order = np.lexsort((in_rate, flow.task_of))
    tasks = flow.task_of[order]
    first = np.flatnonzero(np.diff(tasks, prepend=-1))
    found = np.zeros(len(flow))
    found[tasks[first]] = cpu[order[first]]
    return found


def required(accuracy: Floats, cpu: Floats, current: Floats, most: Floats | float = CORE) -> Floats:
    """Eq. 8: the CPU for an accuracy, in proportion to the `cpu` for the `current` one, at most `most`.

    Eq. 9 and 10 are this equation for the least accuracy that is promised and for the highest that is possible.
    """
    known = current > 0.0
    proportional = accuracy * cpu / np.where(known, current, 1.0)
    guess = np.where(accuracy > 0.0, most, 0.0)
    return np.minimum(np.where(known, proportional, guess), most)


def keep(flow: Flow, desired: Floats) -> tuple[Floats, Floats]:
    """Eq. 15: the share of rows to keep on each stream, and by task, of its input from outside (1 if it has none).

    `desired` is by task (Eq. 14). Where nothing is desired upstream, no rows arrive that could be dropped.
    """
    before = desired[flow.start]
    streams = np.where(before > 0.0, desired[flow.end] / np.where(before > 0.0, before, 1.0), 1.0)
    outside = np.ones(len(flow))
    outside[flow.sources] = desired[flow.sources]
    return np.minimum(streams, 1.0), outside


def least_of_tasks(flow: Flow, of_instances: Floats) -> Floats:
    """Task -> the lowest value of its instances, 0 where it has none."""
    found = np.full(len(flow), np.inf)
    np.minimum.at(found, flow.task_of, of_instances)
    return np.where(np.isinf(found), 0.0, found)
