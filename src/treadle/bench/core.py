"""The speed of Treadle itself: a control round, the simulator, a cycle of the quality controller, the control loop.

The control round is compared with the same in plain Python, the simulator with the same chain in SimPy.
Times are CPU times, which other load distorts least; on an idle machine they equal elapsed time. Both sides of a
comparison must give the same results, or the benchmark fails.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ParamSpec, TypeVar

import numpy as np

from treadle.bench.claims import Claims, at_most
from treadle.bench.quality.cycle_cost import cycle_ms
from treadle.bench.simulator.baselines import Delivery, PlainRound, Reading, need_simpy, simpy_chain
from treadle.decide import registry
from treadle.decide.transform import SCALES
from treadle.enforce import Changes, Knob, Per, Target, Value, diff
from treadle.engines.simulator.engine import Simulator
from treadle.engines.simulator.scenario import Cost, Execution, OperatorSpec, QuerySpec, Scenario, Source
from treadle.loop import Binding, Clock, Loop, SystemClock
from treadle.model import Operator, Query, Topology
from treadle.observe import Provider
from treadle.values import Sample

Given = ParamSpec("Given")
Result = TypeVar("Result")

POLICY = "highest-rate"
"""The measured policy: of the most used ones it needs the most metrics, some of them computed along the graph."""
CHAIN = 5
"""Number of operators in each query."""
OFFERS = frozenset({"tuples_in", "tuples_out", "cpu_time"})
PERIOD = 0.1
"""Seconds between two samples."""
TAU, FORGET = 2.0, 60.0
WARM_UP = 3
"""Rounds that are not timed: counters need two samples before any metric is known."""
STRETCHES = 6
"""Number of stretches into which the loop's run is divided; the cheapest counts."""
LOOP_CPU = 0.01
"""The aim: the loop uses at most this share of a core."""
LOAD = 0.9
COSTS = (10e-6, 20e-6, 30e-6, 20e-6, 10e-6)
"""CPU seconds per tuple in each operator of the simulated chain."""


@dataclass(frozen=True)
class Effort:
    """The amount of work to measure."""

    sizes: Mapping[int, int]
    """By number of instances: the number of control rounds."""
    compared: tuple[int, int]
    """Number of instances and of control rounds in the comparison with plain Python."""
    tuples: int
    """Tuples sent through the simulated chain."""
    tuples_compared: int
    """Tuples sent through both chains when the simulator is compared with SimPy."""
    repeats: int
    """Number of simulations; the fastest counts."""
    loop_seconds: float
    promises: Mapping[int, int]
    """By number of tasks: the number of cycles of the quality controller."""


FULL = Effort(
    {100: 300, 2_000: 200, 10_000: 100, 100_000: 30}, (10_000, 15), 500_000, 20_000, 3, 3.0,
    {2_000: 50, 10_000: 20, 50_000: 8},
)  # fmt: skip


def run(
    progress: Callable[[str], None] | None = None, *, effort: Effort = FULL, clock: Clock | None = None
) -> dict[str, Any]:
    """Return all figures, as `treadle bench core --json` prints them; `progress` gets the name of each measurement."""
    tell = progress or (lambda _: None)
    need_simpy()
    rounds: dict[str, float] = {}
    for size, repeats in effort.sizes.items():
        tell(f"control rounds over {size:,} instances")
        rounds[str(size)] = _figure(decide_ms(size, repeats))
    tell("the same rounds in plain Python")
    speedup = vectorised_speedup(*effort.compared)
    tell("the simulator, which may have to be compiled first")
    events = simulator_events_per_s(effort.tuples, effort.repeats)
    tell("the same chain in SimPy")
    ratio = simpy_ratio(effort.tuples_compared, effort.repeats)
    promises: dict[str, float] = {}
    for size, repeats in effort.promises.items():
        tell(f"the quality controller over {size:,} tasks")
        promises[str(size)] = _figure(cycle_ms(size, repeats))
    tell(f"the control loop, for {effort.loop_seconds:g} s")
    fraction = round_cpu_fraction(0.05, 100, effort.loop_seconds, clock)
    found = {
        "decide_ms": rounds,
        "vectorised_speedup": _figure(speedup),
        "simulator_events_per_s": round(events),
        "simpy_ratio": _figure(ratio),
        "round_cpu_fraction_50ms_100_instances": _figure(fraction),
        "quality_cycle_ms": promises,
        "policy": POLICY,
        "speedup_at": effort.compared[0],
        "machine": machine(),
    }
    return {**found, "claims": claims(found)}


def claims(found: Mapping[str, Any]) -> Claims:
    """Return the claim about the CPU that the control loop uses."""
    used = found["round_cpu_fraction_50ms_100_instances"]
    return [at_most("part of a core that the loop takes, at 50 ms over 100 instances", used, LOOP_CPU)]


def decide_ms(instances: int, rounds: int) -> float:
    """Return the median milliseconds of a whole control round: metrics, policy, niceness, and the changes.

    The policy is highest-rate on chains of 5. Writing the changes is not included: that depends on the knob.
    """
    topology = chains(instances)
    control = Round(topology)
    times = [timed(control, sample)[0] for sample in samples(topology, WARM_UP + rounds)]
    return 1e3 * statistics.median(times[WARM_UP:])


def vectorised_speedup(instances: int, rounds: int) -> float:
    """Return the ratio of CPU times per round, plain Python : Treadle. Both must decide the same in every round."""
    topology = chains(instances)
    vectorised, plain = Round(topology), PlainRound(topology, TAU, FORGET)
    taken = list(samples(topology, WARM_UP + rounds))
    ours = [timed(vectorised, sample) for sample in taken]
    theirs = [timed(plain, sample.time, readings(topology, sample)) for sample in taken]
    for number, ((_, (changes, reason)), (_, expected)) in enumerate(zip(ours, theirs, strict=True)):
        assert (as_plain(changes), reason) == expected, f"round {number} differs"
    plain_seconds, seconds = (statistics.median(used for used, _ in side[WARM_UP:]) for side in (theirs, ours))
    return plain_seconds / seconds


def simulator_events_per_s(tuples: int, repeats: int) -> float:
    """Return the events per CPU second of a simulated chain of 5 operators; compilation is not included."""
    _simulate(simulated_chain(tuples=100))
    scenario = simulated_chain(tuples)
    rates = [events / delivery.cpu_seconds for events, delivery in (_simulate(scenario) for _ in range(repeats))]
    return max(rates)


def simpy_ratio(tuples: int, repeats: int) -> float:
    """Return the ratio of operator steps per CPU second, simulator : SimPy, on the same chain."""
    scenario = simulated_chain(tuples)
    _simulate(simulated_chain(tuples=100))
    arrivals = Simulator(scenario).state.arrival["time"].tolist()
    ours = min((_simulate(scenario)[1] for _ in range(repeats)), key=lambda delivery: delivery.cpu_seconds)
    theirs = min((simpy_chain(COSTS, arrivals) for _ in range(repeats)), key=lambda delivery: delivery.cpu_seconds)
    differ = f"the chains differ: {ours}, {theirs}"
    assert ours.results == theirs.results == len(arrivals), differ
    assert math.isclose(ours.finished, theirs.finished, rel_tol=1e-6), differ  # neither idles while there is work
    assert 0.5 < ours.mean_latency / theirs.mean_latency < 2.0, differ  # only the order of service differs
    return theirs.cpu_seconds / ours.cpu_seconds  # both make the same number of steps


def round_cpu_fraction(period: float, instances: int, seconds: float, clock: Clock | None = None) -> float:
    """Return the share of a CPU that the real loop uses, with an engine and a knob in memory.

    Most of this CPU time is the cost of waking up: after a pause the CPU's caches are cold, and a round takes several
    times as long as in `decide_ms`. Other load makes that worse, so the cheapest of several stretches counts. Only the
    CPU time of the loop's thread counts: other threads of this process may show the progress.
    """
    clock = SystemClock() if clock is None else clock
    stretches: list[float] = []
    engine = MemoryEngine(chains(instances), clock, rounds=math.ceil(seconds / period) + STRETCHES + WARM_UP)
    with Loop([engine], [Binding(registry.create(POLICY), "nice", period)], clock=clock) as loop:
        for _ in range(WARM_UP):
            loop.round(force=True)
        for _ in range(STRETCHES):
            started, used = clock.now(), time.thread_time()
            loop.run(seconds / STRETCHES)
            stretches.append((time.thread_time() - used) / (clock.now() - started))
    return min(stretches)


def machine() -> dict[str, Any]:
    """Return the hardware and software of the measurement."""
    packages = {name: version(name) for name in ("numpy", "numba", "simpy")}
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        **packages,
    }


# ---------------------------------------------------------------- a control round


class Round:
    """A control round of the real parts, without the loop around them. Changes count as written."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.policy = registry.create(POLICY)
        self.provider = Provider(OFFERS, [*self.policy.needs, "rate"], tau=TAU, forget=FORGET)
        self.current = np.zeros(len(topology))

    def __call__(self, sample: Sample) -> tuple[Changes, str]:
        """Return the changes and the reason for them."""
        schedule = self.policy.decide(self.provider.update(self.topology, sample))
        wanted = SCALES["nice"].apply(schedule.scalar, schedule.spacing)
        changes = diff(self.topology.ids, wanted, self.current, knob="nice")
        self.current[changes.rows] = changes.after
        return changes, schedule.reason


class MemoryKnob:
    """A knob for niceness that only stores the values."""

    name = "nice"
    per: Per = "instance"

    def __init__(self) -> None:
        self.values: dict[Target, Value] = {}

    def read(self, target: Target) -> Value:
        return self.values.get(target, 0.0)

    def write(self, target: Target, value: Value) -> None:
        self.values[target] = value


class MemoryEngine:
    """An engine with samples that were made beforehand, so that only the loop is measured."""

    name = "memory"
    in_process = True
    offers = OFFERS

    def __init__(self, topology: Topology, clock: Clock, rounds: int) -> None:
        self._topology = topology
        self._clock = clock
        self._samples = deque(samples(topology, rounds))
        self._knobs = {"nice": MemoryKnob()}

    def topology(self) -> Topology:
        return self._topology

    def sample(self, _: frozenset[str]) -> Sample:
        made = self._samples.popleft() if len(self._samples) > 1 else self._samples[0]
        return Sample(self._clock.now(), made.columns)

    def knobs(self) -> Mapping[str, Knob]:
        return self._knobs


def chains(instances: int) -> Topology:
    """Build queries of 5 operators in a row."""
    operators = tuple(Operator(f"op{at}", (f"op{at - 1}",) if at > 1 else ()) for at in range(1, CHAIN + 1))
    return Topology.of(Query(f"q{number}", operators) for number in range(1, instances // CHAIN + 1))


def samples(topology: Topology, rounds: int, seed: int = 1) -> Iterator[Sample]:
    """Generate counters of an engine: in each round half of the operators have run, at varying costs.

    Costs differ by a factor of 30, so that most of the kernel's range of niceness is used, and vary so much that in
    each round about a tenth of the nice values changes.
    """
    rng = np.random.default_rng(seed)
    rows = len(topology)
    cost = 10.0 ** rng.uniform(-4.5, -3.0, rows)
    selectivity = rng.uniform(0.7, 1.1, rows)
    columns = {name: np.zeros(rows) for name in sorted(OFFERS)}
    for number in range(rounds):
        taken = rng.poisson(100.0, rows) * (rng.random(rows) < 0.5)
        columns = {
            "tuples_in": columns["tuples_in"] + taken,
            "tuples_out": columns["tuples_out"] + rng.poisson(taken * selectivity),
            "cpu_time": columns["cpu_time"] + taken * cost * rng.lognormal(0.0, 0.5, rows),
        }
        yield Sample(number * PERIOD, columns)


def readings(topology: Topology, sample: Sample) -> dict[str, Reading]:
    """Convert a sample for `PlainRound`."""
    columns = (sample.columns[name].tolist() for name in ("tuples_in", "tuples_out", "cpu_time"))
    return {name: Reading(*values) for name, *values in zip(topology.ids, *columns, strict=True)}


def as_plain(changes: Changes) -> dict[Target, Value]:
    """Convert changes to the form of `PlainRound`."""
    return {change.target: change.after for change in changes}


# ---------------------------------------------------------------- a simulated chain


def simulated_chain(tuples: int) -> Scenario:
    """Build a scenario: operators in a row on one processor, Poisson arrivals, batches of 10, 90 % load."""
    rate = LOAD / sum(COSTS)
    operators = tuple(
        OperatorSpec(
            name=f"op{at}",
            upstream=(f"op{at - 1}",) if at > 1 else (),
            cost=Cost(mean=cost),
            source=None if at > 1 else Source(pattern="poisson", rate=rate),
        )
        for at, cost in enumerate(COSTS, start=1)
    )
    return Scenario(
        title="a chain",
        seconds=tuples / rate,
        execution=Execution(mode="cooperative", processors=1, batch=10),
        query=(QuerySpec(name="chain", operator=operators),),
    )


def _simulate(scenario: Scenario) -> tuple[float, Delivery]:
    """Run until all tuples are processed; return the number of events, and the delivery."""
    simulator = Simulator(scenario)
    used, _ = timed(simulator.advance, math.inf)
    latency = simulator.results.latency
    return simulator.counters["events"], Delivery(len(latency), float(latency.mean()), simulator.now, used)


# ---------------------------------------------------------------- figures


def timed(work: Callable[Given, Result], *arguments: Given.args, **options: Given.kwargs) -> tuple[float, Result]:
    """Return the CPU seconds of a call in this thread, and its result."""
    started = time.thread_time()
    result = work(*arguments, **options)
    return time.thread_time() - started, result


def _figure(value: float) -> float:
    """Round to three significant digits; more would be noise."""
    return float(f"{value:.3g}")
