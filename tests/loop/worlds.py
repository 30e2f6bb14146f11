"""Stand-ins for tests of the loop: a clock that only the test moves, and engines and knobs that live in memory."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from treadle.decide.policies import QueueSize
from treadle.decide.policy import Policy
from treadle.enforce import Knob, Per, Target, Value
from treadle.errors import TargetGone
from treadle.loop import Binding, Loop
from treadle.model import Instance, Operator, Query, Role, ThreadRef, Topology
from treadle.values import Sample, Schedule, Snapshot

FOUND = 3.0
"""The nice that every thread has before the loop starts."""


class TestClock:
    """A stand-in for time. To sleep is to be there at once; `meanwhile` sees each sleep."""

    __test__ = False

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        self.meanwhile()


class MemoryKnob:
    """A stand-in for a setting of the system, in memory."""

    def __init__(self, name: str, per: Per, values: dict[Target, Value], *, grows: bool = False) -> None:
        self.name = name
        self.per = per
        self.values = values
        self.writes: list[tuple[Target, Value]] = []
        self.refuses = False
        self._grows = grows

    def read(self, target: Target) -> Value:
        if target not in self.values and not self._grows:
            raise TargetGone(f"{target} has ended")
        return self.values.setdefault(target, 1024.0)

    def write(self, target: Target, value: Value) -> None:
        if self.refuses:
            raise OSError("not permitted")
        self.writes.append((target, value))
        self.values[target] = value


class MemoryEngine:
    """A stand-in for an engine, in memory: one query `q`, an operator and a main thread for each queue it is given."""

    in_process = True

    def __init__(self, name: str, queue: list[float], *, helpers: bool = False) -> None:
        self.name = name
        self.offers = frozenset({"queue", "output_queue"} if helpers else {"queue"})
        self.columns = {"queue": np.array(queue), "output_queue": np.zeros(len(queue))}
        self.fails: Exception | None = None
        self.asked = 0
        self.now: Callable[[], float] = lambda: float(self.asked)
        self.version = 0
        self.helpers = helpers
        self.run([f"o{i}" for i in range(len(queue))])
        threads = self.topology().threads
        self.nice = MemoryKnob("nice", "thread", dict.fromkeys(threads, FOUND))
        self.rank = MemoryKnob("rank", "instance", dict.fromkeys(self.topology().ids, 0.0))
        self.group = MemoryKnob("group", "thread", dict.fromkeys(threads, "root"))
        self.shares = MemoryKnob("shares", "group", {}, grows=True)
        self._knobs: Mapping[str, Knob] = {k.name: k for k in (self.nice, self.rank, self.group, self.shares)}

    def run(self, operators: list[str], query: str = "q") -> None:
        """From now on the engine runs these operators, one after another."""
        chain = tuple(Operator(op, tuple(operators[i - 1 : i])) for i, op in enumerate(operators))
        instances = []
        for op in operators:
            number = int(op.removeprefix("o")) + 1
            threads = [ThreadRef(number)]
            if self.helpers:
                threads.append(ThreadRef(100 + number, role=Role.HELPER))
            instances.append(Instance(query, (op,), 0, self.name, tuple(threads)))
        self.version += 1
        self._topology = Topology((Query(query, chain),), tuple(instances), self.version)

    def split(self, first: str, second: str) -> None:
        """From now on the last operator is a query of its own."""
        *rest, last = self._topology.instances
        chain, alone = self._topology.queries[0].operators[:-1], Operator(last.operators[0])
        instances = [*(replace(i, query=first) for i in rest), replace(last, query=second)]
        self._topology = Topology((Query(first, chain), Query(second, (alone,))), tuple(instances), self.version + 1)

    def topology(self) -> Topology:
        return self._topology

    def sample(self, wanted: frozenset[str]) -> Sample:
        self.asked += 1
        if self.fails:
            raise self.fails
        return Sample(self.now(), {name: self.columns[name].copy() for name in wanted})

    def knobs(self) -> Mapping[str, Knob]:
        return self._knobs

    def nices(self) -> list[Value]:
        return [self.nice.values[thread] for thread in self.topology().threads]


class ByQueue(QueueSize):
    """Queue size, which also notes when it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def decide(self, snapshot: Snapshot) -> Schedule:
        self.asked.append(snapshot.time)
        return super().decide(snapshot)


class NeedsCost(Policy):
    """Cost, which also notes that of the first operator."""

    name: ClassVar[str] = "needs-cost"
    needs = ("cost",)

    def __init__(self) -> None:
        self.seen: list[float] = []

    def decide(self, snapshot: Snapshot) -> Schedule:
        self.seen.append(float(snapshot["cost"][0]))
        return Schedule(snapshot["cost"])


class Reversed(QueueSize):
    """The shortest queue first."""

    name: ClassVar[str] = "reversed"

    def decide(self, snapshot: Snapshot) -> Schedule:
        return Schedule(-snapshot["queue"])


class Failing(QueueSize):
    """Never decides."""

    name: ClassVar[str] = "failing"

    def decide(self, snapshot: Snapshot) -> Schedule:
        raise RuntimeError("broken")


@dataclass
class World:
    clock: TestClock
    engine: MemoryEngine
    policy: ByQueue

    def loop(self, *bindings: Binding, **options: Any) -> Loop:
        return Loop([self.engine], bindings or [Binding(self.policy, "nice", 1.0)], clock=self.clock, **options)


def make_world() -> World:
    world = World(TestClock(), MemoryEngine("mem", [0.0, 50.0, 100.0]), ByQueue())
    world.engine.now = world.clock.now
    return world


def costs_seen(world: World, costs: list[float], **options: Any) -> list[float]:
    """The costs that a policy sees, second by second, where the engine measures these."""
    policy, world.engine.offers = NeedsCost(), frozenset({"cost"})
    loop = world.loop(Binding(policy, "nice", 1.0), **options)
    for cost in costs:
        world.engine.columns["cost"] = np.full(3, cost)
        loop.run(1.0)
    return policy.seen


def note_threads(engine: MemoryEngine) -> list[threading.Thread]:
    """From now on the threads in which the engine is asked."""
    threads: list[threading.Thread] = []
    sample = engine.sample

    def noting(wanted: frozenset[str]) -> Sample:
        threads.append(threading.current_thread())
        return sample(wanted)

    engine.sample = noting  # type: ignore[method-assign]
    return threads


def run_and_signal(number: int) -> None:
    """What the test of a real program runs: it is sent a signal, and at its end tells the values that are there."""
    world = make_world()
    world.clock.meanwhile = lambda: os.kill(os.getpid(), number)
    atexit.register(lambda: sys.stdout.write(f"{world.engine.nices()}\n"))
    with world.loop() as loop:
        loop.run()
