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

from treadle.engines.spark.agent.reports import Counts, Task
from treadle.engines.spark.counters.batch_costs import BatchCosts
from treadle.engines.spark.kafka.source_lag import SourceLag
from treadle.model import Ints
from treadle.observe.graph import TRACE

NANO = 1e-9


class BatchReading(NamedTuple):
    """A query in micro-batches at one time; NaN: unknown."""

    tuples_in: float
    tuples_out: float
    cpu_time: float
    """Seconds of the CPU that its tasks have used, without Python workers."""
    queue: float
    """Rows that are in the source and in no finished batch."""
    head_age: float
    """Seconds since the oldest of them came."""
    works: bool
    """Whether a job of it runs."""
    cost: float
    """CPU seconds for a row. Where it is not known what waits, the fixed part of the last batch is in it."""
    batch_cost: float
    """CPU seconds for a batch, apart from its rows."""
    selectivity: float
    """Rows put out for each that the last batches with rows took in."""
    heard: float = math.nan
    """Rows of `queue` that the query has heard of; the others are held to have come as fast as before."""


FindOwner = Callable[[Task], str]
"""The run of the query that a task belongs to; empty if it is none's, or while nobody knows it."""
FindRun = Callable[[int, int], str]
"""The run of the query of a process's thread, by Java's number of it; empty while nobody knows it."""


@dataclass
class _Past:
    """Of one run, what holds from one reading to the next."""

    rows_in: float = 0.0
    rows_out: float = 0.0
    before: tuple[float, float] = (0.0, 0.0)
    """These when the agent that counts now was loaded."""
    cpu: float = 0.0
    """Seconds, of jobs that are over."""
    counted: int = 0
    """Nanoseconds of them since that agent was loaded."""
    lags: dict[str, SourceLag] = field(default_factory=dict)
    done: tuple[int, int, int] = (0, 0, 0)
    """Rows in and out of all batches that are over, since that agent was loaded, and how many batches had rows."""
    rows: int = 0
    """Rows of batches that are over, and whose CPU time is not known yet."""
    batches: int = 0
    """How many these are."""
    paid: float = 0.0
    """Seconds of `cpu` that belong to batches before those."""
    costs: BatchCosts = field(default_factory=BatchCosts)
    selectivity: float = math.nan
    batch: float = math.nan
    """Rows of the last batches that had some, on average."""


class BatchQueries:
    """Of one application, over all its processes."""

    def __init__(self, find_owner: FindOwner, find_run: FindRun) -> None:
        self._find_owner, self._find_run = find_owner, find_run
        self._latest: dict[int, Counts] = {}
        self._past: dict[str, _Past] = {}
        self.runs: frozenset[str] = frozenset()
        """Of the queries in micro-batches at the last reading."""

    def update(self, pid: int, counts: Counts) -> None:
        """Take a reading of one process."""
        self._latest[pid] = counts

    def keep(self, pids: Collection[int]) -> None:
        """These are the processes now."""
        for pid in self._latest.keys() - set(pids):
            del self._latest[pid]

    def read(self) -> dict[str, BatchReading]:
        """By run, all queries in micro-batches that run now."""
        queries = {
            run: (values(), counts.time)
            for pid, counts in self._latest.items()
            for task, values in _each(counts)
            if task.stage < 0 and (run := self._find_run(pid, task.partition))
        }
        self.runs = frozenset(queries)
        tasks: dict[str, list[dict[str, int]]] = {run: [] for run in queries}
        for counts in self._latest.values() if queries else ():
            for task, values in _each(counts):
                if task.stage >= 0 and (run := self._find_owner(task)) in tasks:
                    tasks[run].append(values())
        self._past = {run: self._past.get(run) or _Past() for run in queries}
        return {run: self._read(self._past[run], values, tasks[run], time) for run, (values, time) in queries.items()}

    def _read(self, past: _Past, values: dict[str, int], tasks: list[dict[str, int]], time: float) -> BatchReading:
        _learn(past, values)
        lags = [past.lags.setdefault(name, SourceLag()) for name in values if name.startswith("committed:")]
        ends = [(values[f"committed:{at}"], values[f"latest:{at}"]) for at in range(len(lags))]
        known = bool(ends) and min(min(ends)) >= 0
        for lag, (committed, latest) in zip(lags, ends if known else (), strict=known):
            lag.update(time, committed, latest, min(time, NANO * values["asked"]))
        # The report of a batch comes a moment after the end of its job: rows do not go back meanwhile.
        sources = [name.removeprefix("taken:") for name in values if name.startswith("taken:")]
        taken = sum(_so_far(values, f"taken:{source}", f"taken-by:{source}", tasks) for source in sources)
        left = _so_far(values, "left", "left-by", tasks)
        past.rows_in = max(past.rows_in, past.before[0] + values["in"] + taken)
        past.rows_out = max(past.rows_out, past.before[1] + values["out"] + left)
        cpu = max(0, values["running"]) + sum(max(0, task.get("cpu", 0)) for task in tasks)
        waiting = sum(lag.waiting for lag in lags) if known else math.nan
        fixed, per_row = past.costs.fit()
        return BatchReading(
            past.rows_in,
            past.rows_out if values["out"] >= 0 else math.nan,
            past.cpu + NANO * cpu,
            waiting,
            max(lag.age for lag in lags) if known else math.nan,
            works=values["jobs"] > 0,
            cost=per_row + fixed / past.batch if math.isnan(waiting) else per_row,
            batch_cost=math.nan if math.isnan(waiting) else fixed,
            selectivity=past.selectivity,
            heard=sum(max(0, latest - committed) for committed, latest in ends) if known else math.nan,
        )


def _learn(past: _Past, values: dict[str, int]) -> None:
    """From batches that are over: what rows cost, and how many come out."""
    if values["in"] < past.done[0] or values["cpu"] < past.counted:  # another agent was loaded
        past.before, past.done, past.counted = (past.rows_in, past.rows_out), (0, 0, 0), 0
    past.cpu += NANO * (values["cpu"] - past.counted)
    past.counted = values["cpu"]
    rows_in, rows_out = values["in"] - past.done[0], values["out"] - past.done[1]
    if rows_in > 0:
        past.selectivity = max(rows_out / rows_in, TRACE) if values["out"] >= 0 else math.nan
        count = max(1, values["batches"] - past.done[2])
        past.rows, past.batches, past.batch = past.rows + rows_in, past.batches + count, rows_in / count
        past.done = values["in"], values["out"], values["batches"]
    if past.rows and not values["unread"]:
        if past.cpu > past.paid:  # otherwise nobody knows what they have used
            past.costs.add(past.rows / past.batches, (past.cpu - past.paid) / past.batches)
        past.paid, past.rows, past.batches = past.cpu, 0, 0


def _so_far(values: dict[str, int], ended: str, metric: str, tasks: list[dict[str, int]]) -> int:
    """What tasks of the batch that runs have counted: those that have ended, and those that have not."""
    return values[ended] + sum(max(0, task.get(f"metric:{values[metric]}", 0)) for task in tasks)


def _each(counts: Counts) -> Iterator[tuple[Task, Callable[[], dict[str, int]]]]:
    """All that is counted, with what makes its values by column: most are not wanted here."""
    begin = 0
    for task in counts.tasks:
        end = begin + len(task.columns)
        yield task, partial(_by_column, task, counts.values[begin:end])
        begin = end


def _by_column(task: Task, values: Ints) -> dict[str, int]:
    return dict(zip(task.columns, values.tolist(), strict=True))
