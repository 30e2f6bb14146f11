"""Wraps an application's engine for the loop: handles the application's end, resets new threads, and guards real-time.

`enforce.recovery.new_threads` resets new threads in each round, before a policy decides about them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from treadle.enforce import Knob
from treadle.enforce.recovery.new_threads import NewThreadReset
from treadle.enforce.recovery.releasable import Releasable
from treadle.enforce.recovery.watchdog import Watchdog
from treadle.engines.spark.engine import SparkEngine
from treadle.engines.spark.threads.layout import of_driver
from treadle.errors import TargetGone
from treadle.model import Floats, Topology
from treadle.values import Sample

BLIND = 3.0
"""Maximum seconds that threads stay ordinary until the first progress counter is read. Not all sources have one."""


class AttachedEngine:
    """The engine as the loop sees it. After the application has ended it stays, with an empty topology."""

    def __init__(
        self, engine: SparkEngine, new_threads: NewThreadReset | None = None, guard: Guard | None = None
    ) -> None:
        self.engine = engine
        self.name = engine.name
        self.offers = engine.offers
        self.ended = False
        self._new_threads = new_threads
        self._guard = guard
        self._empty = Topology((), (), -1)
        self._topology = self._empty

    @property
    def in_process(self) -> bool:
        """Whether the engine can be sampled now without waiting for another process."""
        return self.ended or self.engine.in_process

    def news(self) -> bool:
        """Whether to sample the engine: always with a guard. Without news, this call resets new threads itself."""
        if self.ended:
            return False
        if self._guard is not None or self.engine.news():
            return True
        self.settle()
        return False

    @property
    def calm_until(self) -> float:
        """The time until which rounds have nothing to do unless an agent reports; -inf if every round is needed."""
        if self.ended:
            return math.inf
        if self._guard is not None or (self._new_threads is not None and self._new_threads.expects):
            return -math.inf
        return self.engine.calm_until

    def topology(self) -> Topology:
        if self.ended:
            return self._empty
        try:
            self._topology = self.engine.topology()
        except TargetGone:
            self._end()
        self.settle()
        return self._topology

    def _end(self) -> None:
        """End sampling. A new thread closes the engine, since `SparkEngine.close` waits for its poller to end."""
        self.ended, self._topology = True, self._empty
        if self._guard is not None:
            self._guard.watchdog.stop()
        threading.Thread(target=self.engine.close, name="treadle-close", daemon=True).start()

    def settle(self, *, all_threads: bool = False) -> None:
        """Give threads that were started since the last call the values that their process had before, such as nice.

        With `all_threads` none is missed; call it so after all changes are undone.
        """
        if self._new_threads is not None and not self.ended:
            self._new_threads.settle(self._topology, all_threads=all_threads)

    def part(self) -> None:
        """Reset, for the last time, threads started since the last round. Call this after all changes are undone."""
        self.settle(all_threads=True)
        if self._new_threads is not None:
            self._new_threads.close()

    def sample(self, wanted: frozenset[str]) -> Sample:
        if self.ended:
            return Sample(time.monotonic(), {metric: np.empty(0) for metric in wanted})
        if self._guard is None:
            return self.engine.sample(wanted)
        found = self.engine.sample(wanted | (Guard.METRICS & self.offers))
        engine = self.engine
        self._guard.feed(self.name, found, self._topology, engine.cpu_seconds(), engine.busy, *engine.taken)
        return replace(found, columns={metric: found.columns[metric] for metric in wanted if metric in found.columns})

    def knobs(self) -> Mapping[str, Knob]:
        return self.engine.knobs()


class Guard:
    """Feeds one application's watchdog with its progress, and the CPU use of all applications with real-time."""

    PROGRESS = "tuples_in"
    METRICS = frozenset({PROGRESS, "queue", "external_queue"})

    def __init__(
        self,
        releasable: Releasable,
        cores: float,
        period: float,
        burnt: dict[str, float],
        *,
        sees: bool = True,
        beat: Callable[[], None] | None = None,
    ) -> None:
        self.releasable = releasable
        self._burnt = burnt
        """By application, the CPU seconds used so far; NaN without real-time threads. All guards share this mapping: a
        thread of another application may starve a helper."""
        self._began, self._blind = time.monotonic(), sees
        if sees:  # a livelock would keep its own counter from being read
            releasable.release("it is not known yet whether queries make progress")
        self.watchdog = Watchdog(releasable.release, resume=releasable.resume, cores=cores, period=period, beat=beat)
        self.watchdog.start()

    def feed(
        self,
        name: str,
        sample: Sample,
        topology: Topology,
        cpu: float,
        busy: Floats,
        progress: float,
        asked: float,
    ) -> None:
        """Feed the watchdog in a round.

        `progress` is the number of records that all sources had read at the time `asked`. `cpu` is the CPU seconds of
        all the application's threads, since a thread of the driver or of the JVM may starve the stages. A stage that
        spins over its last row has an empty queue, so an instance with `busy` above 0 counts as having input too.
        """
        stages = np.array([not of_driver(instance.query) for instance in topology.instances], dtype=np.bool_)
        nothing = np.full(len(topology), np.nan)
        column = {metric: sample.columns.get(metric, nothing) for metric in self.METRICS}
        self._burnt[name] = cpu if self.releasable.targets else math.nan
        used = [seconds for seconds in self._burnt.values() if not math.isnan(seconds)]
        self._open_eyes(progress)
        inside = np.fmax(column["queue"], busy) if len(busy) == len(stages) else column["queue"]
        waits = bool(np.any(inside[stages] > 0) or np.any(column["external_queue"] > 0))
        self.watchdog.feed(
            time.monotonic(),
            sum(used) if self.releasable.targets and not self._blind else math.nan,
            progress,
            asked=asked,
            waiting=waits,
        )

    def _open_eyes(self, progress: float) -> None:
        if self._blind and (not math.isnan(progress) or time.monotonic() - self._began > BLIND):
            self._blind = False
            self.releasable.resume()
