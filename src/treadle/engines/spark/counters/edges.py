"""Which task writes to which by a streaming shuffle, and which columns of the counters tell what passes there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treadle.engines.spark.agent.reports import Task
from treadle.model import Bools, Floats, Ints


class Sum(NamedTuple):
    """Columns that are added up for each task."""

    columns: Ints
    tasks: Ints
    known: Bools

    def of(self, values: Floats) -> Floats:
        total = np.bincount(self.tasks, values[self.columns], len(self.known)).astype(np.float64, copy=False)
        return np.where(self.known, total, np.nan)


class Edge(NamedTuple):
    """A task that writes a shuffle and one that reads it, and columns of values."""

    key: tuple[int, int, int]
    """The shuffle, and the partitions of writer and reader."""
    writer: int
    reader: int
    sent: int
    filling: int
    message: int
    origin: int
    identity: int
    waiting: int
    received: int
    writers: int
    share: float
    """The part of the writer's rows that goes to this reader: all are held to get equally many."""
    alone: bool
    """Whether nobody else writes for this reader."""


def sum_of(metrics: Sequence[tuple[int, ...]], columns: Sequence[dict[str, int]]) -> Sum:
    """Of each task the columns of some metrics; unknown where one of them is not there."""
    found = [
        (own[f"metric:{metric}"], task)
        for task, (each, own) in enumerate(zip(metrics, columns, strict=True))
        if all(f"metric:{metric}" in own for metric in each)
        for metric in each
    ]
    at, tasks = np.array(found, dtype=np.int64).reshape(-1, 2).T
    known = np.zeros(len(columns), dtype=np.bool_)
    known[tasks] = True
    return Sum(at, tasks, known)


def edges_between(tasks: Sequence[Task], columns: Sequence[dict[str, int]]) -> list[Edge]:
    """All pairs of a writer and a reader of one shuffle. Columns are called `kind:shuffle` or `kind:shuffle:reader`."""
    writers: dict[tuple[int, int], list[int]] = {}
    readers_of: dict[tuple[int, int], int] = {}
    for number, own in enumerate(columns):
        for name in own:
            if name.startswith("sent:"):
                shuffle, to = (int(part) for part in name.split(":")[1:])
                writers.setdefault((shuffle, to), []).append(number)
                readers_of[shuffle, number] = readers_of.get((shuffle, number), 0) + 1
    found: list[Edge] = []
    for reader, own in enumerate(columns):
        for name in own:
            if name.startswith("waiting:"):
                shuffle, partition = int(name.split(":")[1]), tasks[reader].partition
                for writer in writers.get((shuffle, partition), ()):
                    its = columns[writer]
                    found.append(
                        Edge(
                            (shuffle, tasks[writer].partition, partition),
                            writer,
                            reader,
                            its[f"sent:{shuffle}:{partition}"],
                            its.get(f"filling:{shuffle}:{partition}", -1),
                            own.get(f"message:{shuffle}", -1),
                            own.get(f"from:{shuffle}", -1),
                            its.get(f"writer:{shuffle}", -1),
                            own[name],
                            own.get(f"received:{shuffle}", -1),
                            own.get(f"writers:{shuffle}", -1),
                            1.0 / readers_of[shuffle, writer],
                            len(writers[shuffle, partition]) == 1,
                        )
                    )
    return found


def depths(count: int, edges: Sequence[tuple[int, int]]) -> Ints:
    """How many shuffles are between each task and the sources, on the longest way."""
    start, end = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    depth = np.zeros(count, dtype=np.int64)
    for _ in range(count):
        deeper = depth.copy()
        np.maximum.at(deeper, end, depth[start] + 1)
        if (deeper == depth).all():
            break
        depth = deeper
    return depth
