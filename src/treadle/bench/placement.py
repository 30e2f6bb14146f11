"""Taxi Drives on a cluster whose only worker has too much to do, until another is added: Stream-Economics section 7.1.

Each worker has one core of this machine. Broker, driver and load are on the core of the worker that is added, which is
so one that is busy with other things. Everything is counted: what each sink got, who used which core, and the rows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.bench.standalone import Standalone
from treadle.broker import Broker, free_port
from treadle.errors import EngineError
from treadle.pipelines import placement, workers
from treadle.workloads import taxi
from treadle.workloads.injector import Injector

if TYPE_CHECKING:
    from treadle.pipelines.runner import Run

Progress = Callable[[str, float], None]
HASHES = 600
"""For a row in each sink: about half a millisecond. What it really takes is measured while it runs."""
ROWS = {taxi.RIDES: "treadle.workloads.taxi:ride", taxi.FARES: "treadle.workloads.taxi:fare"}
EASY = 100.0
"""Rows a second of each stream at first, while the JVM compiles what is used, and it is measured what a row takes."""
WARM_UPS = 10
LOOK = 0.5
SETTLED = 0.5
"""The part of a phase that is left out of its figures, while all changes."""
PATIENCE = 180.0
ALL = 10**9
CONFIG = {"spark.executor.memory": "768m", "spark.driver.host": "127.0.0.1", "spark.driver.memory": "1g"}


class Sample(NamedTuple):
    """A moment, in seconds from the begin."""

    time: float
    phase: str
    accuracy: Mapping[str, float]
    """By sink: the part of its rows that it has."""
    promised: Mapping[str, float]
    """By sink: the part that it is to have."""
    used: Mapping[str, float]
    """By worker: the cores that our queries use there."""
    others: Mapping[str, float]
    """By worker: the cores that all else uses there."""
    hops: Mapping[str, Sequence[str]]
    """By worker: who is there."""
    warming: Sequence[str]
    waiting: int
    """Rows in the topics that are not yet read."""


def run(
    *, load: float = 1.3, seconds: float = 40.0, cycle: float = 2.0, progress: Progress | None = None
) -> dict[str, Any]:
    """The sinks together ask for so many cores; each phase lasts so long."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise EngineError("there is one core only", where="bench placement", remedy="run it where there are two")
    tell = progress or (lambda *_: None)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="treadle-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        os.sched_setaffinity(0, cores[1:])  # children inherit it
        stack.callback(os.sched_setaffinity, 0, cores)
        tell("starting Kafka and a cluster of one worker", 0.0)
        broker = Broker.start(folder, free_port())
        stack.callback(broker.stop)
        cluster = stack.enter_context(Standalone(folder))
        cluster.add("one", cores[:1])
        spark = workers.session("bench-placement", master=cluster.master, config=CONFIG)
        stack.callback(spark.stop)
        _make_topics(broker.bootstrap, list(ROWS))
        p = taxi.pipeline((HASHES, HASHES), name="placement")
        options: dict[str, Any] = {"channels": "kafka", "kafka": broker.bootstrap, "layout": "fused"}
        options |= {"folder": folder / "work", "limit_rows": ALL, "cycle": cycle}
        fill = stack.enter_context(Injector(broker.bootstrap, ROWS))
        running = stack.enter_context(placement.start(p, spark, **options))
        course = _Course(running, fill, tell, 3.0 * seconds)
        rate = load * course.warm_up(seconds / 2)
        course.phase("one worker", rate, seconds)
        cluster.add("two", cores[1:2])
        course.phase("two workers", rate, seconds)
        fill.rates({})
        if not running.drain(PATIENCE):
            raise EngineError(f"what waits is not worked off in {PATIENCE:g} s", remedy="see what else runs here")
        return course.figures(fill.stop())


class _Course:
    """What was seen, from when it is made."""

    def __init__(self, run: Run, fill: Injector, tell: Progress, whole: float) -> None:
        self._run = run
        self._fill = fill
        self._tell = tell
        self._whole = whole
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    def warm_up(self, seconds: float) -> float:
        """The rows a second of each stream that take a whole core, once that is known and nothing waits."""
        for _ in range(WARM_UPS):
            self.phase("warm-up", EASY, seconds)
            last = self.samples[-1]
            if sum(last.used.values()) > 0.0 and last.waiting < EASY * seconds:
                begun = len(self.samples)
                self.phase("warm-up", EASY, seconds)
                return EASY / _mean([sum(each.used.values()) for each in self.samples[begun:]])
        raise EngineError("it is not known what a row takes", remedy="see what else runs here")

    def phase(self, name: str, rate: float, seconds: float) -> None:
        """So many rows a second of each stream, for so long."""
        self._fill.rates(dict.fromkeys(ROWS, rate))
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            self._run.check()
            self.samples.append(self._sample(name, now - self._began))
            self._tell(name, min((now - self._began) / self._whole, 1.0))
            time.sleep(LOOK)

    def figures(self, sent: Mapping[str, int]) -> dict[str, Any]:
        """Means of the later half of each phase, each move and how long it took to be made good, rows and samples."""
        status = self._status()
        sinks = {name: sink["min_accuracy"] for name, sink in status["sinks"].items()}
        moves = [{**move, "time": move["time"] - self._began} for move in status["moves"]]
        came = sum(sent.values())
        taken = {sink: self._run.hops[sink].tuples_in for sink in sinks}
        return {
            "phases": {name: self._means(name) for name in dict.fromkeys(each.phase for each in self.samples)},
            "moves": [{**move, "recovery_s": self._recovery(move)} for move in moves if move["origin"]],
            "below_minimum_s": {sink: self._below(sink, least) for sink, least in sinks.items()},
            "rows": dict(sent),
            "lost": {sink: max(came - rows, 0) for sink, rows in taken.items()},
            "doubled": {sink: max(rows - came, 0) for sink, rows in taken.items()},
            "samples": [each._asdict() for each in self.samples],
        }

    def _status(self) -> dict[str, Any]:
        assert self._run.promises is not None
        return self._run.promises.status()

    def _sample(self, phase: str, now: float) -> Sample:
        status = self._status()
        sinks, found = status["sinks"], status["workers"]
        return Sample(
            round(now, 2),
            phase,
            {name: 1.0 if sink["accuracy"] is None else sink["accuracy"] for name, sink in sinks.items()},
            {name: 1.0 if sink["promised"] is None else sink["promised"] for name, sink in sinks.items()},
            {name: worker["used"] for name, worker in found.items()},
            {name: worker["used_by_others"] or 0.0 for name, worker in found.items()},
            {name: worker["hops"] for name, worker in found.items()},
            status["warming"],
            sum(channel.rows for channel in self._run.channels.values()),
        )

    def _means(self, phase: str) -> dict[str, Any]:
        own = [each for each in self.samples if each.phase == phase]
        late = own[int(SETTLED * len(own)) :]
        names = sorted({name for each in late for name in each.used})
        return {
            "accuracy": {sink: _mean([each.accuracy[sink] for each in late]) for sink in late[0].accuracy},
            "used": {name: _mean([each.used.get(name, 0.0) for each in late]) for name in names},
            "others": {name: _mean([each.others.get(name, 0.0) for each in late]) for name in names},
            "waiting_rows": _mean([each.waiting for each in late]),
        }

    def _recovery(self, move: Mapping[str, Any]) -> float | None:
        """Seconds until it is warm and has as much as before its move; None: it never came to that."""
        sink = move["hop"]
        before = [each.accuracy[sink] for each in self.samples if each.time <= move["time"]]
        for each in self.samples:
            if each.time > move["time"] and sink not in each.warming and each.accuracy[sink] >= before[-1] - 0.01:
                return round(each.time - float(move["time"]), 1)
        return None

    def _below(self, sink: str, least: float) -> float:
        return round(LOOK * sum(each.accuracy[sink] < least - 0.01 for each in self.samples), 1)


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 3)


def _make_topics(servers: str, names: Sequence[str]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    client = AdminClient({"bootstrap.servers": servers})  # what is under way ends with it
    for made in client.create_topics([NewTopic(name, 1) for name in names]).values():
        made.result()
