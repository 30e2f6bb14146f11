"""Writer-reader pairs of tasks of streaming shuffles, and the counter columns that measure what passes between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treadle.engines.spark.agent.reports import Task
from treadle.model import Bools, Floats, Ints


class Sum(NamedTuple):
    """Counter columns to add up for each task: the indices of columns and, for each, its task.

    `known` is False for tasks without all needed columns: their sum is NaN.
    """

    columns: Ints
    tasks: Ints
    known: Bools

    def of(self, values: Floats) -> Floats:
        total = np.bincount(self.tasks, values[self.columns], len(self.known)).astype(np.float64, copy=False)
        return np.where(self.known, total, np.nan)


class Edge(NamedTuple):
    """A task that writes a shuffle, a task that reads it, and the indices of their counter columns; -1: no column."""

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
    """The share of the writer's rows that goes to this reader: all readers are assumed to get equally many."""
    alone: bool
    """True if no other task writes for this reader."""


def sum_of(metrics: Sequence[tuple[int, ...]], columns: Sequence[dict[str, int]]) -> Sum:
    """Select the columns of each task's metrics; the sum is unknown for a task without one of them."""
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
    """Find all writer-reader pairs of each shuffle. Columns are named `kind:shuffle` or `kind:shuffle:reader`."""
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
    """Count the shuffles between the sources and each task, on the longest path."""
    start, end = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    depth = np.zeros(count, dtype=np.int64)
    for _ in range(count):
        deeper = depth.copy()
        np.maximum.at(deeper, end, depth[start] + 1)
        if (deeper == depth).all():
            break
        depth = deeper
    return depth
