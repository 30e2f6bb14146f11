"""The counters of running tasks as columns of a topology: one value for each instance.

This module finds the instance of each task, by the agents' reports. `live` turns counters into rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from treadle.engines.spark.agent.agents import Agents
from treadle.engines.spark.agent.reports import Task
from treadle.engines.spark.counters.batches import BatchQueries, BatchReading
from treadle.engines.spark.counters.live import LiveCounters
from treadle.engines.spark.counters.readings import Located
from treadle.engines.spark.queries import operators
from treadle.engines.spark.queries.operators import StageCounters
from treadle.engines.spark.queries.rest import Directory
from treadle.engines.spark.threads.places import Place
from treadle.engines.spark.threads.thread_names import parse_thread_name
from treadle.model import Floats, Ints

COUNTERS = ("tuples_in", "tuples_out")
"""Metrics that only grow: an instance without a task keeps its last value."""
OFFERS = frozenset(
    {*COUNTERS, "queue", "output_queue", "external_queue", "head_age", "mean_age", "latency", "batch_cost"}
)
COLUMNS = OFFERS | {"cpu_time", "heard"}
"""`OFFERS`, and for queries in micro-batches `cpu_time`, since most of their tasks end before their thread is seen, and
`heard`: the rows of the queue that are known, not estimated."""
MOST_GRAPHS = 256


class LiveColumns:
    """The counters of all tasks of an application, by instance of its topology."""

    def __init__(self, agents: Agents, directory: Directory) -> None:
        self._agents = agents
        self._directory = directory
        self._counters = LiveCounters(self._locate)
        self._batches = BatchQueries(self._find_owner, self._find_run)
        self.batches: dict[str, BatchReading] = {}
        """By run, the last reading of each query in micro-batches."""
        self._stages: dict[int, tuple[StageCounters, ...]] = {}
        self._unknown = False
        self._generation = -1
        self._last = math.nan
        self._places: Sequence[Place | None] = ()
        self._columns: dict[str, Floats] = {}
        self._rows: tuple[object, Ints, Ints] | None = None
        """The places of a reading, the indices of those with an instance, and the indices of these instances."""

    def take(self, pids: Collection[int]) -> bool:
        """Take the readings that the agents have sent since the last call; True if there were any."""
        self._counters.keep(pids)
        self._batches.keep(pids)
        if self._unknown and self._generation != self._agents.generation:
            self._generation, self._unknown = self._agents.generation, False
            self._counters.rewire()
        took = False
        for pid in pids:
            agent = self._agents.of(pid)
            while agent is not None and agent.counts:
                counts = agent.counts.popleft()
                self._batches.update(pid, counts)
                self._counters.update(pid, counts)
                took, self._last = True, counts.time
        if took:
            # An ended task is read once more while the driver counts it already: use the newest reading only.
            self.batches = self._batches.read()
            self._fill()
        return took

    @property
    def time(self) -> float:
        """The time of the last reading; NaN while there is none."""
        return self._last if self._counters.reading is not None or self.batches else math.nan

    def lay_out(self, places: Sequence[Place | None]) -> None:
        """Switch to new instances: `places` has the place of each."""
        at = {place: row for row, place in enumerate(self._places) if place is not None}
        source = np.array([-1 if place is None else at.get(place, -1) for place in places], dtype=np.int64)
        self._columns = {name: np.append(column, np.nan)[source] for name, column in self._columns.items()}
        self._places, self._rows = places, None
        self._fill()

    def column(self, name: str) -> Floats:
        """Return a metric by instance; NaN where unknown."""
        found = self._columns.get(name)
        return np.full(len(self._places), np.nan) if found is None else found.copy()

    def _fill(self) -> None:
        """Put the last reading into the columns."""
        reading = self._counters.reading
        before = self._columns
        self._columns = {
            name: before.get(name, np.full(len(self._places), np.nan)) if name in COUNTERS else _unknown(self._places)
            for name in COLUMNS
        }
        at = {place: row for row, place in enumerate(self._places) if place is not None}
        for run, batches in self.batches.items():
            if (row := at.get(Place.whole(run))) is not None:
                self._put(row, batches)
        if reading is None:
            return
        if self._rows is None or self._rows[0] is not reading.places:
            rows = np.array([at.get(place, -1) for place in reading.places], dtype=np.int64)
            known = np.flatnonzero(rows >= 0)
            self._rows = reading.places, known, rows[known]
        _, known, rows = self._rows
        values = {"tuples_in": reading.taken, "tuples_out": reading.put_out, **reading._asdict()}
        for name, column in self._columns.items():
            if name not in values:  # only micro-batches have it
                continue
            now = values[name][known]
            # A reader's position is known to half a message, so a better reading may be smaller.
            column[rows] = np.fmax(column[rows], now) if name in COUNTERS else now

    def _put(self, row: int, batches: BatchReading) -> None:
        """Fill in the instance of a query in micro-batches: its backlog is its `queue` and its `external_queue`."""
        values = {**batches._asdict(), "external_queue": batches.queue, "latency": batches.head_age}
        for name in values.keys() & self._columns.keys():
            self._columns[name][row] = values[name]

    @property
    def given(self) -> dict[str, Floats]:
        """Cost and selectivity of queries in micro-batches: their rows and CPU time match only over whole batches."""
        if not self.batches:
            return {}
        found = {name: _unknown(self._places) for name in ("cost", "selectivity")}
        at = {place: row for row, place in enumerate(self._places) if place is not None}
        for run, batches in self.batches.items():
            if (row := at.get(Place.whole(run))) is not None:
                found["cost"][row], found["selectivity"][row] = batches.cost, batches.selectivity
        return found

    def _find_run(self, pid: int, thread: int) -> str:
        agent = self._agents.of(pid)
        known = agent is not None and thread in agent.threads
        return parse_thread_name(agent.threads[thread].name).run if agent is not None and known else ""

    def _find_owner(self, task: Task) -> str:
        job = self._directory.job(task.stage)
        return "" if job is None else job.run

    def _locate(self, task: Task) -> Located | None:
        job, driver = self._directory.job(task.stage), self._agents.driver
        if task.partition < 0 or task.stage < 0 or (job is not None and job.run in self._batches.runs):
            return None  # of a query in micro-batches, or the query itself
        if job is None or not job.run or driver is None:
            self._unknown |= job is None or bool(job.run)
            return None
        if job.execution not in self._stages:
            if job.execution not in driver.graphs:
                self._unknown = True
                return None
            self._stages[job.execution] = _parsed(driver.graphs[job.execution])
            if len(self._stages) > MOST_GRAPHS:
                del self._stages[next(iter(self._stages))]
        stages = self._stages[job.execution]
        if len(stages) != len(job.stages):
            return None
        position = job.stages.index(task.stage)
        return Located(job.number, Place(job.run, position, task.partition), stages[position])


def _unknown(places: Sequence[Place | None]) -> Floats:
    return np.full(len(places), np.nan)


def _parsed(text: str) -> tuple[StageCounters, ...]:
    try:
        return operators.parse(text)
    except (ValueError, KeyError, RecursionError):  # not written by our agent
        return ()
