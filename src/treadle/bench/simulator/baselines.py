"""Baselines for Treadle's own speed: a control round in plain Python, and a chain of operators in SimPy.

Both do the same work as Treadle, and `core.py` checks that the results agree. They are written as is usual without
numpy or numba, with objects, dictionaries and generators; what can be prepared is not timed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.decide.transform import BEYOND, NICE_STEP
from treadle.errors import ConfigError
from treadle.model import Topology
from treadle.observe.catalogue import FINEST_COST, LONGEST_PAUSE
from treadle.observe.graph import TRACE

LOW, HIGH = -20.0, 19.0
"""The lowest and the highest nice value."""


@dataclass(slots=True)
class Reading:
    """The counters of one instance at one moment."""

    tuples_in: float
    tuples_out: float
    cpu_time: float


class PlainRound:
    """A control round by a loop over instances: metrics, highest rate first, niceness, and the changes.

    `tau` and `forget` are those of `observe.Provider`, which has the same formulas.
    """

    def __init__(self, topology: Topology, tau: float, forget: float) -> None:
        self.nice = dict.fromkeys(topology.ids, 0.0)
        self._time = math.nan
        self._operators = [
            _Operator(name, _Average(tau, forget), _Average(tau, forget), _Average(tau, forget))
            for name in topology.ids
        ]
        for start, end, share in zip(*(column.tolist() for column in topology.edges), strict=True):
            self._operators[start].consumers.append((self._operators[end], share))
        self._sinks_first = [self._operators[row] for level in topology.levels for row in level.rows.tolist()]

    def __call__(self, now: float, readings: Mapping[str, Reading]) -> tuple[dict[str, float], str]:
        """Return the new niceness of the instances for which it changes, and the reason."""
        seconds = now - self._time
        self._time = now
        for operator in self._sinks_first:
            operator.observe(readings[operator.name], seconds)
        rates = {op.name: op.global_rate for op in self._operators if not math.isnan(op.global_rate)}
        reason = "highest output rate first"
        if rates:
            leader = max(rates, key=rates.__getitem__)
            reason += f"; {leader} makes {rates[leader]:.3g} results per CPU second"
        changes = {name: nice for name, nice in niceness(rates).items() if nice != self.nice[name]}
        self.nice.update(changes)
        return changes, reason


def niceness(rates: Mapping[str, float]) -> dict[str, float]:
    """Same as `decide.transform.nice` for logarithmic priorities: exact ratios, or min-max if they exceed the range."""
    if not rates or min(rates.values()) == max(rates.values()):
        return dict.fromkeys(rates, 0.0)
    logs = {name: math.log(rate) if rate > 0 else -math.inf for name, rate in rates.items()}
    finite = [height for height in logs.values() if height > -math.inf]
    bottom, top = min(finite), max(finite)
    steps, step = HIGH - LOW, math.log(NICE_STEP)
    if top - bottom <= steps * step:
        return {name: float(round(LOW + min((top - height) / step, steps))) for name, height in logs.items()}
    below = BEYOND if len(finite) < len(logs) else 0.0
    return {
        name: HIGH
        if height == -math.inf
        else float(round(LOW + steps * (1.0 - ((height - bottom) / (top - bottom) + below) / (1.0 + below))))
        for name, height in logs.items()
    }


@dataclass(frozen=True)
class Delivery:
    """Output of a chain of operators: number of results, their mean latency, time of the last one, and CPU seconds."""

    results: int
    mean_latency: float
    finished: float
    cpu_seconds: float


def simpy_chain(costs: Sequence[float], arrivals: Sequence[float]) -> Delivery:
    """Run a chain on one processor: each operator is a process that takes a tuple, waits for the CPU, and sends it."""
    simpy = need_simpy()
    env = simpy.Environment()
    cpu = simpy.Resource(env, capacity=1)
    queues = [simpy.Store(env) for _ in costs]
    latencies: list[float] = []

    def source() -> Generator[Any, Any, None]:
        for at in arrivals:
            yield env.timeout(max(at - env.now, 0.0))
            queues[0].put(at)

    def operator(cost: float, queue: Any, pass_on: Callable[[float], object]) -> Generator[Any, Any, None]:
        while True:
            born = yield queue.get()
            with cpu.request() as turn:
                yield turn
                yield env.timeout(cost)
            pass_on(born)

    env.process(source())
    ways_on = [*(queue.put for queue in queues[1:]), lambda born: latencies.append(env.now - born)]
    for cost, queue, pass_on in zip(costs, queues, ways_on, strict=True):
        env.process(operator(cost, queue, pass_on))
    started = time.thread_time()
    env.run()
    used = time.thread_time() - started
    return Delivery(len(latencies), math.fsum(latencies) / max(len(latencies), 1), float(env.now), used)


def need_simpy() -> Any:
    """Return the module `simpy`, which only this comparison needs."""
    try:
        import simpy
    except ImportError:
        raise ConfigError(
            "SimPy, which the simulator is compared with, is not installed",
            where="bench core",
            remedy="pip install treadle[bench]",
        ) from None
    return simpy


@dataclass(slots=True)
class _Average:
    """Same as `observe.smooth.Smoother`, for one value."""

    tau: float
    forget: float
    mean: float = math.nan
    age: float = 0.0

    def step(self, value: float, seconds: float) -> float:
        self.age += seconds
        if math.isfinite(value):
            if not math.isnan(self.mean):
                value = self.mean - math.expm1(-self.age / self.tau) * (value - self.mean)
            self.mean = value
            self.age = 0.0
        elif self.age > self.forget:
            self.mean = math.nan
        return self.mean


@dataclass(slots=True)
class _Ratio:
    """Same as `observe.catalogue.ratio`, for one instance."""

    kept: float = 0.0
    paused: float = 0.0

    def of(self, grown: float, taken: float, seconds: float) -> float:
        grown += self.kept
        stood = taken == 0.0
        self.paused = self.paused + (0.0 if math.isnan(seconds) else seconds) if stood else 0.0
        self.kept = grown if stood and self.paused <= LONGEST_PAUSE and not math.isnan(grown) else 0.0
        return grown / taken if taken > 0.0 else math.nan


@dataclass(slots=True)
class _Operator:
    """An instance: its consumers, its last counters, and its metrics."""

    name: str
    cost: _Average
    selectivity: _Average
    rate: _Average
    paid: _Ratio = field(default_factory=_Ratio)
    sent: _Ratio = field(default_factory=_Ratio)
    consumers: list[tuple[_Operator, float]] = field(default_factory=list)
    before: Reading | None = None
    global_selectivity: float = math.nan
    global_cost: float = math.nan
    global_rate: float = math.nan

    def observe(self, now: Reading, seconds: float) -> None:
        """Compute the metrics of this round, after those of all consumers."""
        before, self.before = self.before, now
        if before is None:
            return
        taken = _growth(before.tuples_in, now.tuples_in)
        paid = self.paid.of(_growth(before.cpu_time, now.cpu_time), taken, seconds)
        sent = self.sent.of(_growth(before.tuples_out, now.tuples_out), taken, seconds)
        cost, selectivity = self.cost.step(paid, seconds), self.selectivity.step(sent, seconds)
        self.rate.step(taken / seconds, seconds)
        results, further = 0.0, 0.0
        for consumer, share in self.consumers:
            results += share * consumer.global_selectivity
            further += share * consumer.global_cost
        if not self.consumers:
            self.global_selectivity = 1.0 if not selectivity > 0.0 else selectivity if selectivity >= 2 * TRACE else 0.0
            self.global_cost = cost
        elif selectivity == 0.0:
            self.global_selectivity = 0.0
            self.global_cost = cost
        else:
            self.global_selectivity = selectivity * results
            self.global_cost = cost + selectivity * further
        self.global_rate = self.global_selectivity / max(self.global_cost, FINEST_COST)  # max keeps a NaN that is first


def _growth(before: float, now: float) -> float:
    return now - before if now >= before else math.nan
