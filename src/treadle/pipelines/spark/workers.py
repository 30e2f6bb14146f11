"""The workers of a Spark cluster as its executors tell of them, and what each query used on each.

An executor reads in /proc how busy the cores are that it may use, whoever uses them; so what is not Spark's counts, on
whatever machine it is. It knows the tables in the driver's JVM (`Places.java`), not who ought to be where.
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
"""How long a task waits for its place while that lives: as good as for ever."""


def cluster_session(name: str, *, master: str, config: Mapping[str, object] | None = None) -> SparkSession:
    """As `treadle.session`, on a cluster whose workers queries can be placed on."""
    given = dict(config or {})
    extensions = ",".join(filter(None, (str(given.get(EXTENSIONS, "")), EXTENSION)))
    return plain_session(name, master=master, config={"spark.locality.wait": PATIENT, **given, EXTENSIONS: extensions})


def can_place(spark: SparkSession) -> bool:
    """Whether it was made by `cluster_session`."""
    return EXTENSION in str(spark.sparkContext.getConf().get(EXTENSIONS, ""))


class Worker(NamedTuple):
    """An executor. Its seconds count from some moment of its own."""

    id: str
    lives: bool
    host: str
    name: str
    """That its worker was given by TREADLE_WORKER in its environment; the host where it has none."""
    slots: int
    cores: int
    speed: float
    passed: float
    worked: float
    """Seconds of its cores, whoever they worked for."""
    own: float
    """Seconds of the CPU that it has used, with the processes that it started."""
    python: float = 0.0
    """Those of the processes that it started."""
    which: str = ""
    """Its cores as its machine numbers them."""


class Tasks(NamedTuple):
    """Seconds of a query's tasks, those that run included."""

    ran: float
    cpu: float
    """In which their threads were on a core."""
    python: float
    """In which they were not, while Python worked for them."""


class Look(NamedTuple):
    """All counters at a moment (monotonic)."""

    time: float
    workers: Mapping[str, Worker]
    tasks: Mapping[tuple[str, str], Tasks]
    """By query and worker; the query of other tasks is empty."""


class Table:
    """Those of one session; also says where queries are to be."""

    def __init__(self, spark: SparkSession) -> None:
        if jvm.WORKERS not in str(spark.sparkContext.getConf().get("spark.plugins", "")):
            raise ConfigError(
                "its executors don't tell what they use", where="spark", remedy="make the session with treadle.session"
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
    """By query and executor, as the driver's table has it."""
    lines = [line.split("\t") for line in str(places.ran()).splitlines()]
    return {(query, at): Tasks(*map(float, seconds)) for query, at, *seconds in lines}


def _worker(parts: Sequence[str]) -> Worker:
    identity, lives, host, name, slots, *numbers = parts
    cores, speed, passed, worked, own, python, which = numbers
    seconds = (float(passed), float(worked), float(own), float(python))
    return Worker(identity, lives == "true", host, name, int(slots), int(cores), float(speed), *seconds, which)


class LocalCores(Cores):
    """This machine, where the driver's JVM works on all tasks."""

    def __init__(self, spark: SparkSession) -> None:
        self._places: Any = jvm.load(spark).treadle.Places
        self._places.watch(spark.sparkContext._jsc.sc())
        self._began = float(self._places.process())
        super().__init__([jvm.pid(spark)])

    @property
    def python(self) -> float:
        """Core seconds, until the last `read`, of the processes that the JVM has started."""
        return max(self._ours - (float(self._places.process()) - self._began), 0.0)

    def tasks(self) -> Mapping[tuple[str, str], Tasks]:
        return tasks_of(self._places)


class ClusterCores:
    """As `observe.cores.Cores`: what executors have used of their cores, with all that they started, and others.

    Executors of a machine that may use the same cores share them; where they differ, they are taken to have none in
    common.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._last: Mapping[str, Worker] = {}
        self._ours = self._others = self.python = 0.0
        self._tasks: Mapping[tuple[str, str], Tasks] = {}

    @property
    def count(self) -> int:
        """Of all executors that live; none before the first has told of itself."""
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
        """There is nothing to close: the executors tell as long as they live."""

    @staticmethod
    def _places(workers: Mapping[str, Worker]) -> Collection[list[Worker]]:
        """Those that live, by the cores that they may use."""
        found: dict[tuple[str, str], list[Worker]] = {}
        for each in workers.values():
            if each.lives:
                found.setdefault((each.host, each.which), []).append(each)
        return found.values()


class Use(NamedTuple):
    """Between two looks. Cores are those of the first worker: one of a worker that is twice as fast counts for two."""

    cores: Floats
    """By worker: what it has; 0 if it is gone."""
    others: Floats
    """By worker: what is used there by all but the executor; nothing, until it is measured."""
    cpu: Floats
    """By query."""


def used(before: Look, after: Look, workers: Sequence[str], queries: Sequence[str]) -> Use:
    """What there was and what was used of it."""
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
    """A row of `Tasks` for each query, on one worker or on all, and in the last row all other tasks."""
    row = {query: number for number, query in enumerate(queries)}
    found = np.zeros((len(queries) + 1, len(Tasks._fields)))
    for (query, at), seconds in tasks.items():
        if worker in (None, at):
            found[row.get(query, -1)] += seconds
    return found


def divided(own: float, python: float, tasks: Floats) -> Floats:
    """By row of `by_query`: what it used of `own` seconds of the CPU, of which `python` had a part.

    What the threads of tasks used is measured. What Python used is divided by how long tasks waited for it; the rest
    (planner, collector, compiler, the helpers of shuffles) by how long tasks ran.
    """
    ran, cpu, waited = np.maximum(tasks, 0.0).T
    rest = max(own - python - float(cpu.sum()), 0.0)
    used: Floats = cpu + python * _shares(waited if waited.any() else ran) + rest * _shares(ran)
    return used


def _shares(of: Floats) -> Floats:
    shares: Floats = of / max(float(of.sum()), 1e-9)
    return shares
