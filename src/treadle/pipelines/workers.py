"""The workers of a Spark cluster as its executors tell of them, and what each query used on each.

An executor reads in /proc how busy the cores are that it may use, whoever uses them; so what is not Spark's counts, on
whatever machine it is. It knows the tables in the driver's JVM (`Places.java`), not who ought to be where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.errors import ConfigError
from treadle.model import Floats
from treadle.pipelines import jvm
from treadle.pipelines.session import session as plain_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLUGIN = "treadle.Workers"
EXTENSION = "treadle.Placed$Extension"
PATIENT = "10min"
"""How long a task waits for its place while that lives: as good as for ever."""


def session(name: str, *, master: str, config: Mapping[str, object] | None = None) -> SparkSession:
    """As `treadle.session`, on a cluster whose workers queries can be placed on."""
    given = {key: str(value) for key, value in (config or {}).items()}
    jar = str(jvm.jar())
    added = {"spark.jars": jar, "spark.plugins": PLUGIN, "spark.sql.extensions": EXTENSION}
    joined = {key: ",".join(filter(None, (given.get(key), value))) for key, value in added.items()}
    path = ":".join(filter(None, (given.get("spark.driver.extraClassPath"), jar)))
    wanted = {"spark.locality.wait": PATIENT, **given, **joined, "spark.driver.extraClassPath": path}
    return plain_session(name, master=master, config=wanted)


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
    children: float
    """Seconds of the CPU that the processes which it started have used: Python."""


class Took(NamedTuple):
    """Seconds of the tasks of a query on a worker."""

    ran: float = 0.0
    cpu: float = 0.0


class Look(NamedTuple):
    """All counters at a moment (monotonic)."""

    time: float
    workers: Mapping[str, Worker]
    took: Mapping[tuple[str, str], Took]
    """By query and worker."""


class Table:
    """Those of one session; also says where queries are to be."""

    def __init__(self, spark: SparkSession) -> None:
        if PLUGIN not in str(spark.sparkContext.getConf().get("spark.plugins", "")):
            raise ConfigError(
                "the session can't place queries",
                where="spark",
                remedy="make it with treadle.pipelines.workers.session",
            )
        self._places: Any = jvm.load(spark).treadle.Places

    def get(self, query: str) -> str:
        return str(self._places.get(query))

    def set(self, query: str, worker: str) -> None:
        self._places.set(query, worker)

    def look(self, now: float) -> Look:
        workers = [_worker(line.split("\t")) for line in str(self._places.executors()).splitlines()]
        took = {}
        for line in str(self._places.ran()).splitlines():
            query, worker, ran, cpu = line.split("\t")
            took[query, worker] = Took(float(ran), float(cpu))
        workers.sort(key=lambda worker: int(worker.id))
        return Look(now, {worker.id: worker for worker in workers}, took)


def _worker(parts: Sequence[str]) -> Worker:
    identity, lives, host, name, slots, *numbers = parts
    cores, speed, passed, worked, children = numbers
    seconds = (float(passed), float(worked), float(children))
    return Worker(identity, lives == "true", host, name, int(slots), int(cores), float(speed), *seconds)


class Use(NamedTuple):
    """Between two looks. Cores are those of the first worker: one of a worker that is twice as fast counts for two."""

    cores: Floats
    """By worker: what it has; 0 if it is gone."""
    others: Floats
    """By worker: what is used there by all but the tasks of these queries; nothing, until it is measured."""
    cpu: Floats
    """By query."""


def used(before: Look, after: Look, workers: Sequence[str], queries: Sequence[str]) -> Use:
    """What there was and what was used of it."""
    count = len(workers)
    cores, busy, speed = np.zeros(count), np.zeros(count), np.ones(count)
    cpu = np.zeros((len(queries), count))
    passed = max(after.time - before.time, 1e-9)
    known = next((each.speed for name in workers if (each := after.workers[name]).speed > 0.0), 0.0)
    for column, name in enumerate(workers):
        now = after.workers[name]
        if not now.lives:
            continue
        speed[column] = now.speed / known if now.speed > 0.0 else 1.0
        cores[column] = now.cores
        python = 0.0
        earlier = before.workers.get(name)
        if earlier is not None and now.passed > earlier.passed:
            busy[column] = (now.worked - earlier.worked) / (now.passed - earlier.passed)
            python = max(now.children - earlier.children, 0.0) / (now.passed - earlier.passed)
        cpu[:, column] = _of_queries(before, after, name, queries, passed, python)
    others = np.maximum(busy - cpu.sum(axis=0), 0.0)
    return Use(cores * speed, others * speed, cpu @ speed)


def _of_queries(before: Look, after: Look, worker: str, queries: Sequence[str], passed: float, python: float) -> Floats:
    """Cores by query on a worker. What Python used is divided by how long tasks ran without a core of their own."""
    nothing = Took()
    cpu, waited = np.zeros(len(queries)), np.zeros(len(queries))
    for row, query in enumerate(queries):
        now, earlier = after.took.get((query, worker), nothing), before.took.get((query, worker), nothing)
        cpu[row] = (now.cpu - earlier.cpu) / passed
        waited[row] = max((now.ran - earlier.ran) / passed - cpu[row], 0.0)
    found: Floats = cpu + python * waited / max(float(waited.sum()), 1e-9)
    return found
