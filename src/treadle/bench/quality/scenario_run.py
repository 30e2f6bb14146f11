"""`treadle bench quality`: are promises kept under more load than the machine can process (Stream-Economics, 7)?

First the capacity of the machine for the scenario's work is measured. Then the same load is run twice, on the same
session and broker: without shedding, and with it.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.bench.claims import Deaths
from treadle.bench.quality.consumers import Consumers
from treadle.bench.quality.figures import Course, Cycle, Look, figures
from treadle.bench.quality.scenarios import Made, Phase, Scenario
from treadle.linux.cores import Cores
from treadle.pipelines.nodes import graph
from treadle.pipelines.spark import jvm
from treadle.workloads.injector import Injector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from treadle.pipelines.run.run import Run

Progress = Callable[[str, float], None]
LOOK = 0.5
"""Seconds between two samples of the queues."""
PARTITIONS = 2
FIRST_ROWS = 2_000
"""Rows of each source in the first of the backlogs with which `capacity` measures the machine."""
LONG_ENOUGH = 6.0
"""Least seconds of processing for a backlog to show the capacity of the machine."""
SETTLED, TWICE = 1.05, 2
"""If a backlog is processed at least `SETTLED` times as fast as the best before, the JVM still compiles. After `TWICE`
backlogs in a row without such a gain it is warm."""
LEAST = 4
"""Least number of samples, and of cycles, in each phase; a phase is prolonged until it has them."""
STARTING = 180.0
"""Seconds that the broker may take to start, on a busy machine."""
ALL = 10**9
MOST_CYCLES = 10
"""Maximum number of cycles to wait until a stall shows."""


class Place:
    """A session and a broker, and the scenario that is run on them."""

    def __init__(self, spark: SparkSession, servers: str, scenario: Scenario, unit: float, cycle: float) -> None:
        self.spark = spark
        self.servers = servers
        self.scenario = scenario
        self.unit = unit
        self.cycle = cycle

    def start(self, made: Made, folder: Path, options: Mapping[str, Any]) -> Run:
        """Start the pipeline of the scenario."""
        run: Run = made.pipeline.start(self.spark, folder=folder, **options)
        return run

    def begin(self, phase: Phase) -> None:
        """Prepare what a phase needs besides its load: nothing, except on a cluster."""

    def workers(self, run: Run) -> dict[str, tuple[float, float]]:  # noqa: ARG002 - only clusters have workers
        """Return by worker the cores used there by the pipeline, and by others."""
        return {}

    def results(self, run: Run, made: Made, sent: Mapping[str, int]) -> dict[str, Any]:  # noqa: ARG002 - as above
        """Return more figures, once all rows that were sent to each source are processed."""
        return {} if made.figures is None else made.figures(sent)

    @contextmanager
    def running(self, *, shed: bool) -> Iterator[tuple[Run, Injector, Made, Consumers, Mapping[str, str]]]:
        """Run the scenario's pipeline on new topics, with an injector for them; the last value maps source -> topic."""
        prefix = f"{uuid.uuid4().hex[:8]}-"
        topics = {source: f"{prefix}{source}" for source in self.scenario.rows}
        make_topics(self.servers, topics.values())
        made = self.scenario.make(self.unit, prefix)
        consumers = Consumers(made.pipeline)
        folder = Path(tempfile.mkdtemp(prefix="treadle-"))
        rows = {topics[source]: maker for source, maker in self.scenario.rows.items()}
        options = {"kafka": self.servers, "limit_rows": ALL, "cycle": self.cycle, "shed": shed}
        try:
            with self.start(made, folder, options) as run, Injector(self.servers, rows) as fill:
                yield run, fill, made, consumers, topics
                run.stop(timeout=1.0)  # rows that still wait don't matter
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def run(
    scenario: Scenario,
    *,
    cycle: float = 2.0,
    pace: float = 1.0,
    plot: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run a scenario on a session and a broker of its own; return the figures. `pace` multiplies phases' lengths."""
    from treadle.broker import Broker, free_port
    from treadle.pipelines.spark.session import session
    from treadle.workloads.burn import calibrate

    tell = progress or (lambda *_: None)
    if scenario.phases[0].workers:
        from treadle.bench.quality import placement

        return placement.run(scenario, cycle=cycle, pace=pace, plot=plot, progress=tell)
    folder = Path(tempfile.mkdtemp(prefix="treadle-"))
    tell("starting Kafka and Spark", 0.0)
    broker = Broker.start(folder, free_port(), timeout=STARTING)
    try:
        spark = session("bench-quality")
        spark.sparkContext.setLogLevel("OFF")  # a batch that is stopped half-way is no error here
        try:
            place = Place(spark, broker.bootstrap, scenario, calibrate(spark), cycle)
            return measure(place, pace=pace, plot=plot, progress=tell)
        finally:
            spark.stop()
    finally:
        broker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure(
    place: Place, *, pace: float = 1.0, plot: Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Measure the capacity of the machine, then run the scenario without shedding and with it."""
    tell = progress or (lambda *_: None)
    tell("measuring what the machine can do", 0.1)
    place.begin(place.scenario.phases[0])
    able = capacity(place)
    courses: dict[bool, Course] = {}
    deaths = Deaths()
    for number, shed in enumerate((False, True)):
        what = "with shedding" if shed else "without shedding"

        def told(part: float, number: int = number, what: str = what) -> None:
            tell(what, 0.2 + 0.4 * (number + part))

        place.begin(place.scenario.phases[0])  # before a pipeline runs that could lose a worker
        with deaths.noted(what):
            courses[shed] = _course(place, able, shed=shed, pace=pace, tell=told)
    if deaths:
        return {"scenario": place.scenario.what, "capacity_rows_per_s": able, **deaths.figures(), "claims": []}
    found = figures(place.scenario, able, courses[False], courses[True], place.cycle)
    if plot is not None:
        from treadle.bench.quality.plot import draw

        draw(place.scenario, courses[False], courses[True], plot)
    return found


def capacity(place: Place) -> dict[str, float]:
    """Return by source the rows per second that the machine can process without shedding, if only its application runs.

    Backlogs are processed, each at least as large as the last, until the speed has not risen `TWICE` in a row on
    backlogs that take at least `LONG_ENOUGH`. While the JVM still compiles, the measured capacity is too low, and the
    intended overload would later not be one.
    """
    found: dict[str, float] = {}
    with place.running(shed=False) as (run, fill, _, _, topics):
        for application in place.scenario.applications:
            rows, best, settled = FIRST_ROWS, 0.0, 0
            while settled < TWICE:
                began = time.monotonic()
                fill.heap({topics[source]: rows for source in application})
                _drained(run)
                took = time.monotonic() - began
                settled = settled + 1 if took >= LONG_ENOUGH and rows / took < SETTLED * best else 0
                best = max(best, rows / took)
                rows = int(rows * min(4.0, max(1.0, 1.3 * LONG_ENOUGH / took)))
            found |= dict.fromkeys(application, best)
    return found


def _drained(run: Run) -> None:
    while not run.drained():
        run.check()
        time.sleep(0.02)


def _course(
    place: Place, able: Mapping[str, float], *, shed: bool, pace: float, tell: Callable[[float], None]
) -> Course:
    """Run all phases once, and return the record."""
    scenario = place.scenario
    whole = sum(phase.seconds for phase in scenario.phases) * pace
    cores = Cores([jvm.pid(place.spark)])
    with place.running(shed=shed) as (run, fill, made, consumers, topics):
        course = Course(time.monotonic(), topics)
        for phase in scenario.phases:
            if phase is not scenario.phases[0] and not course.consumed:
                course.consumed = consumers.rows
            rates = {
                source: able[source] * load
                for application, load in zip(scenario.applications, phase.load, strict=True)
                for source in application
            }
            place.begin(phase)
            fill.rates({topics[source]: rate for source, rate in rates.items()})
            course.begin(time.monotonic(), phase, rates)
            until, seen = time.monotonic() + phase.seconds * pace, (len(course.looks), len(course.cycles))
            while (now := time.monotonic()) < until or not _enough(course, seen, shed):
                run.check()
                course.looks.append(_look(run, now, cores, place.workers(run)))
                _note_cycle(run, course)
                tell((now - course.began) / whole)
                time.sleep(LOOK)
        course.ended = time.monotonic()
        if shed:
            fill.rates({})
            _drained(run)
            course.consumed = {name: rows - course.consumed[name] for name, rows in consumers.rows.items()}
            course.fed_by = {
                sink: [topics[name] for name in graph.needed_by([sink], run.nodes) if name in topics]
                for sink in consumers.rows
            }
            fill.rates({topics[source]: rate for source, rate in rates.items()})
            course.stall_cycles = _stall(run, consumers)
            sent = fill.stop()
            _drained(run)
            course.results = place.results(run, made, {source: sent[topic] for source, topic in topics.items()})
        course.sent = fill
    cores.close()
    return course


def _stall(run: Run, consumers: Consumers) -> int:
    """Stall the sink of the highest priority; return the number of cycles until its accuracy has fallen below half."""
    sinks = _quality(run)["sinks"]
    sink = max(sinks, key=lambda name: sinks[name]["priority"])
    while (before := _quality(run)["sinks"][sink]["accuracy"]) in (None, 0.0) or run.hops[sink].batches == 0:
        time.sleep(0.02)
    consumers.stall(sink)
    times = {_quality(run)["time"]}
    while len(times) <= MOST_CYCLES:
        quality = _quality(run)
        times.add(quality["time"])
        if quality["sinks"][sink]["accuracy"] < before / 2:
            break
        run.check()
        time.sleep(0.02)
    consumers.go_on(sink)
    return len(times) - 1


def _quality(run: Run) -> dict[str, Any]:
    assert run.promises is not None
    return run.promises.status()


def _enough(course: Course, before: tuple[int, int], shed: bool) -> bool:
    """Return whether a phase has enough samples and, with shedding, cycles: `LEAST` since the counts `before`."""
    looks, cycles = before
    return len(course.looks) >= looks + LEAST and (not shed or len(course.cycles) >= cycles + LEAST)


def _look(run: Run, now: float, cores: Cores, workers: Mapping[str, tuple[float, float]]) -> Look:
    channels = run.channels
    sources = {name: channels[name].total - channels[name].rows for name in run.nodes if run.nodes[name].kind.starts}
    waiting = {name: channel.rows for name, channel in channels.items()}
    return Look(now, waiting, sources, *cores.read(), workers)


def _note_cycle(run: Run, course: Course) -> None:
    if run.promises is None:
        return
    status = run.promises.status()
    if status["time"] is None or (course.cycles and course.cycles[-1].time == status["time"]):
        return
    sinks = status["sinks"]
    course.cycles.append(
        Cycle(
            status["time"],
            {name: each["promised"] for name, each in sinks.items()},
            {name: math.nan if each["accuracy"] is None else each["accuracy"] for name, each in sinks.items()},
            status["rates"],
        )
    )
    course.promises = sinks


def make_topics(servers: str, topics: Iterable[str]) -> None:
    """Create topics with several partitions, so that one query can use several cores."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    wanted = [NewTopic(topic, PARTITIONS) for topic in topics]
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics(wanted).values():
        made.result()
