"""An application's engine with what attaching adds to it: its end, threads that are born, and a watch over real-time.

A new thread has the nice, the slice and the group of the one that started it, so it would begin with what we gave that
one: it gets what its process had before, in the round in which it is first seen. That is what is found then, and put
back later.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np

from treadle.enforce import Knob, Value
from treadle.enforce.changes import same
from treadle.enforce.kernel import thread_ref
from treadle.enforce.leash import Leash
from treadle.enforce.watchdog import Watchdog
from treadle.engines.spark.engine import SparkEngine
from treadle.engines.spark.layout import DRIVER
from treadle.errors import TargetGone, TreadleError
from treadle.model import Topology
from treadle.values import Sample

PYTHON_WORKER = "python worker"
"""What the driver calls a thread of such a process."""
INHERITED = ("nice", "slice", "group")
"""Knobs whose value a new thread has from the one that starts it; real-time threads start ordinary ones."""


class Followed:
    """The engine as the loop sees it. After the application's end it is there still, with nothing in it."""

    def __init__(self, engine: SparkEngine, heirs: Heirs | None = None, guard: Guard | None = None) -> None:
        self.engine = engine
        self.name = engine.name
        self.offers = engine.offers
        self.ended = False
        self._heirs = heirs
        self._guard = guard
        self._empty = Topology((), (), -1)
        self._topology = self._empty

    def topology(self) -> Topology:
        try:
            self._topology = self.engine.topology()
        except TargetGone:
            self.ended = True
            self._topology = self._empty
        self.settle()
        return self._topology

    def settle(self) -> None:
        """See to the threads that were born since the last time."""
        if self._heirs is not None and not self.ended:
            self._heirs.settle(self._topology)

    def sample(self, wanted: frozenset[str]) -> Sample:
        if self.ended:
            return Sample(time.monotonic(), {metric: np.empty(0) for metric in wanted})
        if self._guard is None:
            return self.engine.sample(wanted)
        found = self.engine.sample(wanted | (Guard.METRICS & self.offers))
        self._guard.feed(self.name, found, self._topology)
        return Sample(found.time, {metric: found.columns[metric] for metric in wanted if metric in found.columns})

    def knobs(self) -> Mapping[str, Knob]:
        return self.engine.knobs()


class Guard:
    """Feeds one application's watchdog: the CPU that all real-time threads use, and how its own work goes on."""

    METRICS = frozenset({"cpu_time", "tuples_in", "queue", "external_queue"})

    def __init__(self, leash: Leash, cores: float, period: float, burnt: dict[str, float]) -> None:
        self.leash = leash
        self._burnt = burnt
        """CPU seconds by application: what starves a helper may be another's thread."""
        self.watchdog = Watchdog(leash.release, resume=leash.resume, cores=cores, period=period)
        self.watchdog.start()

    def feed(self, name: str, sample: Sample, topology: Topology) -> None:
        stages = np.array([not of_driver(instance.query) for instance in topology.instances], dtype=np.bool_)
        nothing = np.full(len(topology), np.nan)
        column = {metric: sample.columns.get(metric, nothing) for metric in self.METRICS}
        self._burnt[name] = float(np.nansum(column["cpu_time"][stages])) if self.leash.targets else math.nan
        used = [seconds for seconds in self._burnt.values() if not math.isnan(seconds)]
        taken = column["tuples_in"]
        waits = bool(np.any(column["queue"][stages] > 0) or np.any(column["external_queue"] > 0))
        self.watchdog.feed(
            time.monotonic(),
            sum(used) if self.leash.targets else math.nan,
            math.nan if np.isnan(taken).all() else float(np.nansum(taken)),
            waiting=waits,
        )


class Heirs:
    """Threads that are born while we are attached, of processes that we schedule."""

    def __init__(self, knobs: Iterable[Knob], pids: Iterable[int]) -> None:
        self._knobs = tuple(knob for knob in knobs if knob.name in INHERITED)
        self._known: dict[int, set[str]] = {}
        self._found: dict[int, Mapping[str, Value]] = {}
        self._seen: Topology | None = None
        for pid in pids:
            self._meet(pid)

    def settle(self, topology: Topology) -> None:
        """Give the new threads what their process had."""
        if topology is not self._seen:
            self._seen = topology
            for pid, worker in {(thread.pid, thread.name == PYTHON_WORKER) for thread in topology.threads}:
                if pid not in self._known:
                    self._meet_worker(pid) if worker else self._meet(pid)
        for pid, known in self._known.items():
            threads = _threads(pid)
            for tid in threads - known:
                self._give(pid, int(tid), self._found[pid])
            self._known[pid] = threads

    def _meet(self, pid: int) -> None:
        """A process as it is: its first thread has what it was started with, and is none that we schedule."""
        found: dict[str, Value] = {}
        for knob in self._knobs:
            with suppress(TreadleError):
                found[knob.name] = knob.read(thread_ref(pid, pid))
        self._known[pid], self._found[pid] = _threads(pid), found

    def _meet_worker(self, pid: int) -> None:
        """A Python worker, and the process that starts them, which a task's thread has started."""
        daemon = _parent(pid)
        found = self._found.get(_parent(daemon), {})
        self._known[pid], self._found[pid] = _threads(pid), found
        for each in (daemon, pid) if found else ():
            self._give(each, each, found)

    def _give(self, pid: int, tid: int, found: Mapping[str, Value]) -> None:
        for knob in self._knobs:
            with suppress(TreadleError):  # it has ended, or is none of those that can be set
                thread = thread_ref(tid, pid)
                if knob.name in found and not same(knob.read(thread), found[knob.name]):
                    knob.write(thread, found[knob.name])


def of_driver(query: str) -> bool:
    """Whether it is the engine itself, and no query of the user's."""
    return query in (DRIVER, f"spark {DRIVER}")


def _threads(pid: int) -> set[str]:
    try:
        return set(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return set()


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(1024)
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split(None, 2)[1])
