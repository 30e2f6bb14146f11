"""Rows in, out and waiting of each task in the middle of a batch, from the counters that run inside the tasks.

The agent reads the counters (`java/treadle/Counters.java`); here they become rows. What a stage puts out is counted by
its operators, or follows from the bytes that it has written. What it takes from a streaming shuffle is not counted,
but the messages of a shuffle are numbered: the writer's rows at the time when it sent a message are the rows of all
messages up to it. So the number of the message that a reader is at, looked up in that curve, tells the rows that it has
taken. The same curves tell the age of the oldest row that waits, with no time stamp in any row.

A batch ends task by task. What an ended task has counted is kept until the last task of its job has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import numpy as np

from treadle.engines.spark.agent.reports import Counts, Task
from treadle.engines.spark.counters.readings import Located, Past, Reading, TaskColumns
from treadle.model import Floats, Ints

Locate = Callable[[Task], Located | None]
"""None while nobody knows whose a task is."""


class LiveCounters:
    """Of one application, over all its processes. Takes every reading of the counters, in order."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._latest: dict[int, Counts] = {}
        self._ended: list[tuple[Task, Ints]] = []
        """Tasks that have ended while others of their jobs run, with what they had counted."""
        self._past = Past()
        self._wired: TaskColumns | None = None
        self._stale = True
        self.reading: Reading | None = None
        """The last one; None while no task is known."""

    def update(self, pid: int, counts: Counts) -> None:
        """Take a reading of one process."""
        before = self._latest.get(pid)
        if before is None or before.tasks is not counts.tasks:
            if before is not None:
                self._end(pid, before, {(task.stage, task.partition) for task in counts.tasks})
            self._stale = True
        self._latest[pid] = counts
        if self._stale:
            self._wire()
        if self._wired is not None:
            self.reading = self._wired.read(counts.time, self._values())

    def keep(self, pids: Collection[int]) -> None:
        """These are the processes now."""
        for pid in self._latest.keys() - set(pids):
            self._end(pid, self._latest[pid], set())
            del self._latest[pid]
            self._stale = True

    def rewire(self) -> None:
        """More is known now of whose tasks are."""
        self._stale = True

    def _end(self, pid: int, last: Counts, alive: Collection[tuple[int, int]]) -> None:
        """All tasks of a process but these have ended. What they have put out was sent, whatever their buffers say."""
        values = last.values.copy()
        ended = []
        for task, own in _apart(last._replace(values=values)):
            if (task.stage, task.partition) not in alive:
                own[[name.startswith(("filling:", "held:")) for name in task.columns]] = 0
                ended.append((task, own))
        self._latest[pid] = last._replace(values=values)
        if ended and self._wired is not None and not self._stale:
            self._wired.read(last.time, self._values())
        self._ended += ended

    def _wire(self) -> None:
        """Find the columns of all tasks anew; those of jobs that are over become part of the past."""
        self._stale = False
        tasks = [task for counts in self._latest.values() for task in counts.tasks]
        located = [self._locate(task) for task in tasks]
        running = {each.job for each in located if each is not None}
        gone = [self._locate(task) for task, _ in self._ended]
        if self._wired is not None:
            self._past.add(self._wired, running)
        kept = [number for number, each in enumerate(gone) if each is not None and each.job in running]
        self._ended = [self._ended[number] for number in kept]
        tasks += [task for task, _ in self._ended]
        located += [gone[number] for number in kept]
        self._wired = TaskColumns(tasks, located, self._past, self._wired) if any(located) else None
        if self._wired is None:
            self.reading = None

    def _values(self) -> Floats:
        parts = [counts.values for counts in self._latest.values()] + [values for _, values in self._ended]
        return np.append(np.concatenate(parts).astype(np.float64), np.nan)


def _apart(counts: Counts) -> Iterable[tuple[Task, Ints]]:
    begin = 0
    for task in counts.tasks:
        yield task, counts.values[begin : begin + len(task.columns)]
        begin += len(task.columns)
