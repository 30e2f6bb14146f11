"""The workers of a Spark cluster as its executors tell of them, and what each query used on each.

An executor reads in /proc how busy the cores are that it may use, whoever uses them; so what is not Spark's counts, on
whatever machine it is. It knows the tables in the driver's JVM (`Places.java`), not who ought to be where.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.errors import ConfigError
from treadle.model import Floats
from treadle.observe.cores import Used
from treadle.pipelines import jvm
from treadle.pipelines.session import session as plain_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTENSIONS = "spark.sql.extensions"
EXTENSION = "treadle.Placed$Extension"
PATIENT = "10min"
"""How long a task waits for its place while that lives: as good as for ever."""


def session(name: str, *, master: str, config: Mapping[str, object] | None = None) -> SparkSession:
    """As `treadle.session`, on a cluster whose workers queries can be placed on."""
    given = dict(config or {})
    extensions = ",".join(filter(None, (str(given.get(EXTENSIONS, "")), EXTENSION)))
    return plain_session(name, master=master, config={"spark.locality.wait": PATIENT, **given, EXTENSIONS: extensions})


def can_place(spark: SparkSession) -> bool:
    """Whether it was made by `session`."""
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
    """Seconds of the CPU that it has used, with the processes that it started: Python."""
    which: str = ""
    """Its cores as its machine numbers them."""


class Look(NamedTuple):
    """All counters at a moment (monotonic)."""

    time: float
    workers: Mapping[str, Worker]
    ran: Mapping[tuple[str, str], float]
    """By query and worker: the seconds of all tasks that have ended."""


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
        ran = {}
        for line in str(self._places.ran()).splitlines():
            query, at, seconds = line.split("\t")
            ran[query, at] = float(seconds)
        workers.sort(key=lambda worker: int(worker.id))
        return Look(now, {worker.id: worker for worker in workers}, ran)


def _worker(parts: Sequence[str]) -> Worker:
    identity, lives, host, name, slots, *numbers = parts
    cores, speed, passed, worked, own, which = numbers
    seconds = (float(passed), float(worked), float(own))
    return Worker(identity, lives == "true", host, name, int(slots), int(cores), float(speed), *seconds, which)


class ClusterCores:
    """As `observe.cores.Cores`: what executors have used of their cores, with all that they started, and others.

    Executors of a machine that may use the same cores share them; where they differ, they are taken to have none in
    common.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._last: Mapping[str, Worker] = {}
        self._ours = self._others = 0.0

    @property
    def count(self) -> int:
        """Of all executors that live; none before the first has told of itself."""
        return sum(shared[0].cores for shared in self._places(self._table.look(0.0).workers))

    def read(self) -> Used:
        workers = self._table.look(0.0).workers
        for shared in self._places(workers):
            known = [(self._last[each.id], each) for each in shared if each.id in self._last]
            own = sum(max(now.own - before.own, 0.0) for before, now in known)
            worked = max((now.worked - before.worked for before, now in known), default=0.0)
            self._ours += own
            self._others += max(worked - own, 0.0)
        self._last = workers
        return Used(self._ours, self._others)

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
    """What there was and what was used of it. What an executor used is divided by how long tasks of each query ran."""
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
            own = max(now.own - earlier.own, 0.0) / passed
            others[column] = max((now.worked - earlier.worked) / passed - own, 0.0)
            cpu += speed[column] * own * _parts(before, after, name, queries)
    return Use(cores * speed, others * speed, cpu)


def _parts(before: Look, after: Look, worker: str, queries: Sequence[str]) -> Floats:
    ran = np.array([after.ran.get((query, worker), 0.0) - before.ran.get((query, worker), 0.0) for query in queries])
    parts: Floats = ran / max(float(ran.sum()), 1e-9)
    return parts
