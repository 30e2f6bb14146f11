"""The workers of a Spark cluster as reported by its executors, and the CPU that each query used on each worker.

An executor reads from /proc how busy its cores are, no matter which processes use them, so CPU used by other programs
is known too. This module reads the tables in the driver's JVM (`Places.java`); it does not decide where queries run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.errors import ConfigError
from treadle.linux.cores import Cores, Used
from treadle.model import Floats
from treadle.pipelines.spark import jvm
from treadle.pipelines.spark.session import session as plain_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTENSIONS = "spark.sql.extensions"
EXTENSION = "treadle.Placed$Extension"
PATIENT = "10min"
"""How long a task waits for a slot on its query's executor while that is alive: practically for ever."""


def cluster_session(name: str, *, master: str, config: Mapping[str, object] | None = None) -> SparkSession:
    """A session like `treadle.session`, on a cluster, in which queries can be placed on workers."""
    given = dict(config or {})
    extensions = ",".join(filter(None, (str(given.get(EXTENSIONS, "")), EXTENSION)))
    return plain_session(name, master=master, config={"spark.locality.wait": PATIENT, **given, EXTENSIONS: extensions})


def can_place(spark: SparkSession) -> bool:
    """Whether the session was made by `cluster_session`."""
    return EXTENSION in str(spark.sparkContext.getConf().get(EXTENSIONS, ""))


class Worker(NamedTuple):
    """An executor, as it last reported. All seconds are counted from an arbitrary start."""

    id: str
    lives: bool
    host: str
    name: str
    """The value of TREADLE_WORKER in its worker's environment; the host if that is not set."""
    slots: int
    cores: int
    speed: float
    passed: float
    worked: float
    """Seconds in which its cores were busy, summed over the cores, no matter which processes used them."""
    own: float
    """CPU seconds of the executor and of the processes that it started."""
    python: float = 0.0
    """CPU seconds of the processes that it started."""
    which: str = ""
    """The names of its cores in /proc/stat."""


class Tasks(NamedTuple):
    """Seconds of a query's tasks, summed over all tasks so far; running ones are included."""

    ran: float
    cpu: float
    """Seconds in which their threads were on a core."""
    python: float
    """Seconds in which their threads were not on a core, while Python worked for them."""


class Look(NamedTuple):
    """A sample of all counters at one moment (monotonic)."""

    time: float
    workers: Mapping[str, Worker]
    tasks: Mapping[tuple[str, str], Tasks]
    """By query and worker; tasks of no query have an empty query id."""


class Table:
    """The table of one session's workers, in the driver's JVM. `get` and `set` are for the workers of a query."""

    def __init__(self, spark: SparkSession) -> None:
        if jvm.WORKERS not in str(spark.sparkContext.getConf().get("spark.plugins", "")):
            raise ConfigError(
                "its executors don't report their CPU use",
                where="spark",
                remedy="make the session with treadle.session",
            )
        self._places: Any = jvm.load(spark).treadle.Places

    def get(self, query: str) -> str:
        return str(self._places.get(query))

    def set(self, query: str, worker: str) -> None:
        self._places.set(query, worker)

    def look(self, now: float) -> Look:
        workers = [_worker(line.split("\t")) for line in str(self._places.executors()).splitlines()]
        workers.sort(key=lambda worker: int(worker.id))
        return Look(now, {worker.id: worker for worker in workers}, tasks_of(self._places))


def tasks_of(places: Any) -> dict[tuple[str, str], Tasks]:
    """Seconds of tasks by query and executor, from the table of the driver."""
    lines = [line.split("\t") for line in str(places.ran()).splitlines()]
    return {(query, at): Tasks(*map(float, seconds)) for query, at, *seconds in lines}


def _worker(parts: Sequence[str]) -> Worker:
    identity, lives, host, name, slots, *numbers = parts
    cores, speed, passed, worked, own, python, which = numbers
    seconds = (float(passed), float(worked), float(own), float(python))
    return Worker(identity, lives == "true", host, name, int(slots), int(cores), float(speed), *seconds, which)


class LocalCores(Cores):
    """The cores of this machine in local mode, where the driver's JVM runs all tasks."""

    def __init__(self, spark: SparkSession) -> None:
        self._places: Any = jvm.load(spark).treadle.Places
        self._places.watch(spark.sparkContext._jsc.sc())
        self._began = float(self._places.process())
        super().__init__([jvm.pid(spark)])

    @property
    def python(self) -> float:
        """CPU seconds of the processes that the JVM has started (Python workers), up to the last `read`."""
        return max(self._ours - (float(self._places.process()) - self._began), 0.0)

    def tasks(self) -> Mapping[tuple[str, str], Tasks]:
        return tasks_of(self._places)


class ClusterCores:
    """Counts the CPU of executors, including processes that they started, and the CPU of all other processes.

    It has the interface of `linux.cores.Cores`. If executors on one machine may use the same set of cores, these cores
    count once; different sets are assumed to be disjoint.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._last: Mapping[str, Worker] = {}
        self._ours = self._others = self.python = 0.0
        self._tasks: Mapping[tuple[str, str], Tasks] = {}

    @property
    def count(self) -> int:
        """The cores of all living executors; 0 before the first one has reported."""
        return sum(shared[0].cores for shared in self._places(self._table.look(0.0).workers))

    def read(self) -> Used:
        _, workers, self._tasks = self._table.look(0.0)
        for shared in self._places(workers):
            known = [(self._last[each.id], each) for each in shared if each.id in self._last]
            own = sum(max(now.own - before.own, 0.0) for before, now in known)
            worked = max((now.worked - before.worked for before, now in known), default=0.0)
            self._ours += own
            self.python += sum(max(now.python - before.python, 0.0) for before, now in known)
            self._others += max(worked - own, 0.0)
        self._last = workers
        return Used(self._ours, self._others)

    def tasks(self) -> Mapping[tuple[str, str], Tasks]:
        return self._tasks

    def close(self) -> None:
        """Do nothing: executors report as long as they live."""

    @staticmethod
    def _places(workers: Mapping[str, Worker]) -> Collection[list[Worker]]:
        """The living executors, grouped by the cores that they may use."""
        found: dict[tuple[str, str], list[Worker]] = {}
        for each in workers.values():
            if each.lives:
                found.setdefault((each.host, each.which), []).append(each)
        return found.values()


class Use(NamedTuple):
    """CPU use between two samples, in cores of the first worker: a core that is twice as fast counts as two."""

    cores: Floats
    """By worker: its cores; 0 if it is gone."""
    others: Floats
    """By worker: cores used by processes that do not belong to the executor; 0 until measured."""
    cpu: Floats
    """By query: cores used."""


def used(before: Look, after: Look, workers: Sequence[str], queries: Sequence[str]) -> Use:
    """Compute the cores of each worker, and the CPU that others and each query used between two samples."""
    count = len(workers)
    cores, others, speed = np.zeros(count), np.zeros(count), np.ones(count)
    cpu = np.zeros(len(queries))
    known = next((each.speed for name in workers if (each := after.workers[name]).speed > 0.0), 0.0)
    for column, name in enumerate(workers):
        now, earlier = after.workers[name], before.workers.get(name)
        if not now.lives:
            continue
        speed[column] = now.speed / known if now.speed > 0.0 else 1.0
        cores[column] = now.cores
        if earlier is not None and now.passed > earlier.passed:
            passed = now.passed - earlier.passed
            own, python = max(now.own - earlier.own, 0.0), max(now.python - earlier.python, 0.0)
            others[column] = max((now.worked - earlier.worked) - own, 0.0) / passed
            tasks = by_query(after.tasks, queries, name) - by_query(before.tasks, queries, name)
            cpu += speed[column] * divided(own, python, tasks)[:-1] / passed
    return Use(cores * speed, others * speed, cpu)


def by_query(tasks: Mapping[tuple[str, str], Tasks], queries: Sequence[str], worker: str | None = None) -> Floats:
    """Return a row of `Tasks` for each query, on one worker or on all; the last row is for all other tasks."""
    row = {query: number for number, query in enumerate(queries)}
    found = np.zeros((len(queries) + 1, len(Tasks._fields)))
    for (query, at), seconds in tasks.items():
        if worker in (None, at):
            found[row.get(query, -1)] += seconds
    return found


def divided(own: float, python: float, tasks: Floats) -> Floats:
    """Divide `own` CPU seconds of an executor among the rows of `by_query`; `python` is the part that Python used.

    The CPU of task threads is measured. Python's CPU is divided in proportion to the time that tasks waited for Python.
    All other CPU (planner, garbage collector, compiler, helper threads of shuffles) is divided in proportion to the
    time that tasks ran.
    """
    ran, cpu, waited = np.maximum(tasks, 0.0).T
    rest = max(own - python - float(cpu.sum()), 0.0)
    used: Floats = cpu + python * _shares(waited if waited.any() else ran) + rest * _shares(ran)
    return used


def _shares(of: Floats) -> Floats:
    shares: Floats = of / max(float(of.sum()), 1e-9)
    return shares
