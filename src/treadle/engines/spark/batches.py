"""Rows, CPU and backlog of each query that runs in micro-batches, from what its driver and its running tasks count.

A query's batches are counted when they are done, exactly; of the batch that runs, what the tasks that have ended have
counted (the driver adds it up) and those that still run. What waits is what has come and no batch is done with, by the
offsets of its sources. The agent reads all this (`java/treadle/Batches.java`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from treadle.engines.spark.operators import BatchCounters
from treadle.engines.spark.reports import Counts, Task
from treadle.engines.spark.source_lag import SourceLag
from treadle.model import Ints

NANO = 1e-9


class BatchJob(NamedTuple):
    """A job of a micro-batch: the run of its query, and what counts its rows, as far as its plan is known."""

    run: str
    counters: BatchCounters


class BatchReading(NamedTuple):
    """A query in micro-batches at one time; NaN: unknown."""

    tuples_in: float
    tuples_out: float
    cpu_time: float
    """Seconds of the CPU that its tasks have used, without Python workers."""
    queue: float
    """Rows that have come and no batch is done with."""
    head_age: float
    """Seconds since the oldest of them came."""


FindJob = Callable[[Task], BatchJob | None]
"""None for what is no task of a micro-batch, or while nobody knows whose it is."""
FindRun = Callable[[int, int], str]
"""The run of the query of a process's thread, by Java's number of it; empty while nobody knows it."""


@dataclass
class _Past:
    """Of one run, what holds from one reading to the next."""

    rows_in: float = 0.0
    rows_out: float = 0.0
    cpu: float = 0.0
    """Seconds, of jobs that are over."""
    lags: dict[str, SourceLag] = field(default_factory=dict)


class BatchQueries:
    """Of one application, over all its processes."""

    def __init__(self, find_job: FindJob, find_run: FindRun) -> None:
        self._find_job, self._find_run = find_job, find_run
        self._latest: dict[int, Counts] = {}
        self._past: dict[str, _Past] = {}
        self.runs: frozenset[str] = frozenset()
        """Of the queries in micro-batches at the last reading."""

    def update(self, pid: int, counts: Counts) -> None:
        """Take a reading of one process."""
        before = self._latest.get(pid)
        if before is not None and before.tasks is not counts.tasks:
            self._finish(before, {(task.stage, task.partition) for task in counts.tasks})
        self._latest[pid] = counts

    def keep(self, pids: Collection[int]) -> None:
        """These are the processes now."""
        for pid in self._latest.keys() - set(pids):
            self._finish(self._latest.pop(pid), set())

    def read(self) -> dict[str, BatchReading]:
        """By run, all queries in micro-batches that run now."""
        queries = {
            run: (values(), counts.time)
            for pid, counts in self._latest.items()
            for task, values in _each(counts)
            if task.stage < 0 and (run := self._find_run(pid, task.partition))
        }
        self.runs = frozenset(queries)
        live = {run: _Live() for run in queries}
        for counts in self._latest.values() if queries else ():
            for task, values in _each(counts):
                if task.stage >= 0 and (job := self._find_job(task)) is not None and job.run in live:
                    live[job.run].add(job.counters, values())
        self._past = {run: self._past.get(run) or _Past() for run in queries}
        return {run: self._read(run, values, live[run], time) for run, (values, time) in queries.items()}

    def _finish(self, last: Counts, alive: Collection[tuple[int, int]]) -> None:
        """All jobs of a process but these are over: what they have used is known for good."""
        for task, values in _each(last):
            if task.partition == -1 and (task.stage, -1) not in alive and (job := self._find_job(task)) is not None:
                self._past.setdefault(job.run, _Past()).cpu += NANO * max(0, values().get("cpu", 0))

    def _read(self, run: str, values: dict[str, int], live: _Live, time: float) -> BatchReading:
        past = self._past[run]
        lags = [past.lags.setdefault(name, SourceLag()) for name in values if name.startswith("committed:")]
        ends = [(values[f"committed:{at}"], values[f"latest:{at}"]) for at in range(len(lags))]
        known = bool(ends) and min(min(ends)) >= 0
        for lag, (committed, latest) in zip(lags, ends if known else (), strict=known):
            lag.update(time, committed, latest, min(time, NANO * values["asked"]))
        # The report of a batch comes a moment after the end of its job: rows do not go back meanwhile.
        past.rows_in = max(past.rows_in, values["in"] + live.taken)
        past.rows_out = max(past.rows_out, values["out"] + live.put_out)
        return BatchReading(
            past.rows_in,
            past.rows_out if values["out"] >= 0 else math.nan,
            past.cpu + NANO * live.cpu,
            sum(lag.waiting for lag in lags) if known else math.nan,
            max(lag.age for lag in lags) if known else math.nan,
        )


@dataclass
class _Live:
    """What the batch that runs has counted so far."""

    taken: float = 0.0
    put_out: float = 0.0
    cpu: float = 0.0

    def add(self, counters: BatchCounters, values: dict[str, int]) -> None:
        self.taken += sum(max(0, values.get(f"metric:{metric}", 0)) for metric in counters.taken)
        self.put_out += sum(max(0, values.get(f"metric:{metric}", 0)) for metric in counters.put_out)
        self.cpu += max(0, values.get("cpu", 0))


def _each(counts: Counts) -> Iterator[tuple[Task, Callable[[], dict[str, int]]]]:
    """All that is counted, with what makes its values by column: most are not wanted here."""
    begin = 0
    for task in counts.tasks:
        end = begin + len(task.columns)
        yield task, partial(_by_column, task, counts.values[begin:end])
        begin = end


def _by_column(task: Task, values: Ints) -> dict[str, int]:
    return dict(zip(task.columns, values.tolist(), strict=True))
