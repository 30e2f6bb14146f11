"""Rows in, rows out and backlog of each task during a batch, from the counters inside the running tasks.

The agent reads the counters (`java/treadle/Counters.java`); this module turns them into rows. The output of a stage is
counted by its operators, or follows from the bytes written. The input from a streaming shuffle is not counted, but the
messages of a shuffle are numbered: the writer's row count at the time when it sent message n is the number of rows in
messages 0 to n. This is a curve of rows over message numbers. The number of the message that a reader processes now,
looked up in the curve, gives the rows that the reader has taken. The same curves give the age of the oldest waiting
row, without a time stamp in any row.

A batch ends task by task. The counts of an ended task are kept until the last task of its job has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import numpy as np

from treadle.engines.spark.agent.reports import Counts, Task
from treadle.engines.spark.counters.readings import Located, Past, Reading, TaskColumns
from treadle.model import Floats, Ints

Locate = Callable[[Task], Located | None]
"""Finds the place of a task; None while unknown, and for micro-batches."""


class LiveCounters:
    """Counts the rows of an application's tasks in all its processes. Pass every reading to `update`, in order."""

    def __init__(self, locate: Locate) -> None:
        self._locate = locate
        self._latest: dict[int, Counts] = {}
        self._ended: list[tuple[Task, Ints]] = []
        """Ended tasks of jobs that still run, with their last counts."""
        self._past = Past()
        self._wired: TaskColumns | None = None
        self._stale = True
        self.reading: Reading | None = None
        """The last reading; None while no task has a place."""

    def update(self, pid: int, counts: Counts) -> None:
        """Add a reading of one process, and compute `reading`."""
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
        """Set the current processes; others have ended."""
        for pid in self._latest.keys() - set(pids):
            self._end(pid, self._latest[pid], set())
            del self._latest[pid]
            self._stale = True

    def rewire(self) -> None:
        """Locate all tasks again at the next reading, since more jobs or plans are known."""
        self._stale = True

    def _end(self, pid: int, last: Counts, alive: Collection[tuple[int, int]]) -> None:
        """End the tasks of a process except `alive`. They have sent all output: set their buffers to 0."""
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
        """Find the columns of all tasks again; add the counts of finished jobs to the past."""
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
