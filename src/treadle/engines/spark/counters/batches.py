"""Rows, CPU time and backlog of each query in micro-batches, from the counters of its driver and its running tasks.

Finished batches are counted exactly. For the running batch, the driver's sum over ended tasks and the counters of
running tasks are added. The backlog is what has arrived and is in no finished batch, by the offsets of the sources. The
agent reads all this (`java/treadle/Batches.java`).
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
    """The figures of a query in micro-batches at one time; NaN: unknown."""

    tuples_in: float
    tuples_out: float
    cpu_time: float
    """CPU seconds of the query's tasks, without Python workers."""
    queue: float
    """Rows that are in the source and in no finished batch."""
    head_age: float
    """Seconds since the oldest row of `queue` arrived."""
    works: bool
    """Whether a job of the query runs."""
    cost: float
    """CPU seconds per row; with a share of the batch's fixed part if the backlog is unknown."""
    batch_cost: float
    """CPU seconds per batch, apart from those per row."""
    selectivity: float
    """Rows out per row in, over the last batches that had rows."""
    heard: float = math.nan
    """Rows of `queue` that the query's source knows of; the others are estimated from the arrival rate."""


FindOwner = Callable[[Task], str]
"""Finds the run of a task's query; empty if the task has none, or while it is unknown."""
FindRun = Callable[[int, int], str]
"""Finds the run of a query by process and Java's number of the query's thread; empty while unknown."""


@dataclass
class _Past:
    """The state of one run between readings."""

    rows_in: float = 0.0
    rows_out: float = 0.0
    before: tuple[float, float] = (0.0, 0.0)
    """`rows_in` and `rows_out` when the current agent was loaded."""
    cpu: float = 0.0
    """CPU seconds of finished jobs."""
    counted: int = 0
    """CPU nanoseconds of finished jobs since the agent was loaded."""
    lags: dict[str, SourceLag] = field(default_factory=dict)
    done: tuple[int, int, int] = (0, 0, 0)
    """Rows in and out of finished batches, and how many had rows, since the current agent was loaded."""
    rows: int = 0
    """Rows of finished batches with CPU time not known yet."""
    batches: int = 0
    """Number of finished batches with CPU time not known yet."""
    paid: float = 0.0
    """The part of `cpu` that was used by batches which are in `costs` already."""
    costs: BatchCosts = field(default_factory=BatchCosts)
    selectivity: float = math.nan
    batch: float = math.nan
    """Mean rows of the last batches that had rows."""


class BatchQueries:
    """One application's queries in micro-batches."""

    def __init__(self, find_owner: FindOwner, find_run: FindRun) -> None:
        self._find_owner, self._find_run = find_owner, find_run
        self._latest: dict[int, Counts] = {}
        self._past: dict[str, _Past] = {}
        self.runs: frozenset[str] = frozenset()
        """Runs of the queries in micro-batches at the last reading."""

    def update(self, pid: int, counts: Counts) -> None:
        """Store the newest counters of one process, for the next `read`."""
        self._latest[pid] = counts

    def keep(self, pids: Collection[int]) -> None:
        """Set the current processes; forget the others."""
        for pid in self._latest.keys() - set(pids):
            del self._latest[pid]

    def read(self) -> dict[str, BatchReading]:
        """Return, by run, the reading of each running query in micro-batches."""
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
        # A batch is reported a moment after the end of its job; until then its rows must not disappear.
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
    """Update cost and selectivity from finished batches."""
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
        if past.cpu > past.paid:  # otherwise their CPU time is unknown
            past.costs.add(past.rows / past.batches, (past.cpu - past.paid) / past.batches)
        past.paid, past.rows, past.batches = past.cpu, 0, 0


def _so_far(values: dict[str, int], ended: str, metric: str, tasks: list[dict[str, int]]) -> int:
    """Sum a counter over all tasks of the running batch: ended tasks, as the driver sums them, and running tasks."""
    return values[ended] + sum(max(0, task.get(f"metric:{values[metric]}", 0)) for task in tasks)


def _each(counts: Counts) -> Iterator[tuple[Task, Callable[[], dict[str, int]]]]:
    """Yield each task with a function for its values by column: most are not needed here."""
    begin = 0
    for task in counts.tasks:
        end = begin + len(task.columns)
        yield task, partial(_by_column, task, counts.values[begin:end])
        begin = end


def _by_column(task: Task, values: Ints) -> dict[str, int]:
    return dict(zip(task.columns, values.tolist(), strict=True))
