"""Runs one scenario under one policy, through the same loop as real engines, and measures the outcome."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from treadle.decide import registry
from treadle.decide.adaptive import Adaptive, Choice, from_text
from treadle.decide.assign import assigner
from treadle.decide.policy import Policy
from treadle.engines.simulator.engine import Progress, Results, SimulatedClock, Simulator
from treadle.engines.simulator.scenario import ChangeSpec, Mode, Scenario
from treadle.errors import ConfigError, EngineError
from treadle.loop import Binding, Decision, DecisionLog, Loop
from treadle.model import Floats
from treadle.observe import intrinsic

_MODE_OF_KNOB: dict[str, Mode] = {
    "rank": "cooperative",
    "nice": "os",
    "shares": "os",
    "slice": "os",
    "rt": "realtime",
}
_KNOB_OF_MODE: dict[Mode, str] = {"cooperative": "rank", "os": "nice", "realtime": "rt"}


@dataclass(frozen=True)
class Outcome:
    """The result of a run. Latency is from a tuple's arrival to the result it led to."""

    label: str
    scenario: Scenario
    seconds: float
    results: Results
    class_of_row: Floats
    memory: tuple[Floats, Floats]
    trace: Floats
    oldest_waiting: float
    counters: dict[str, float]
    choices: tuple[Choice, ...]
    """For an adaptive policy: which candidate was put in charge when, and why; only the last ones."""
    logs: tuple[DecisionLog, ...]

    @property
    def decisions(self) -> Iterator[Decision]:
        """All changes and their reasons that the loop still remembers."""
        return (decision for log in self.logs for decision in log)

    def summary(self) -> dict[str, Any]:
        """The figures of the run after its warm-up, as values for JSON."""
        now = self.counters["now"]
        start = self.scenario.warm_up
        seconds = max(now - start, 1e-9)
        late = self.results.time - self.results.latency >= start  # tuples that arrived after the warm-up
        times, queued = self.memory
        figures: dict[str, Any] = {
            **_latencies(self.results, late, seconds),
            "max_latency": round(max(self.results.latency[late].max(initial=0.0), self.oldest_waiting), 9),
            "mean_queue": round(float(queued[times >= start].mean()), 6),
            "peak_queue": round(self.counters["queue_peak"], 6),
            "queued_at_end": round(self.counters["queued"], 6),
            "dropped": self.counters["dropped"],
            "cpu": round(self.counters["busy"] / now / self.scenario.execution.processors, 4),
            "switches_per_s": round(self.counters["switches"] / now, 1),
        }
        classes = np.unique(self.class_of_row)
        if len(classes) > 1:
            of_result = self.class_of_row[self.results.row]
            figures["classes"] = {
                f"{value:g}": _latencies(self.results, late & (of_result == value), seconds) for value in classes[::-1]
            }
        if self.choices:
            names = [choice.chosen for choice in self.choices]
            figures["in_charge"] = {name: names.count(name) for name in dict.fromkeys(names)}
        return figures

    def series(self) -> list[list[float]]:
        """One line per event: time, each queue, their total, all output so far.

        Without a trace one line per grid point: time, total, all output so far.
        """
        if len(self.trace) > 1:
            return [[round(value, 10) for value in row] for row in self.trace.tolist()]
        times, queued = self.memory
        order = np.argsort(self.results.time, kind="stable")
        ahead = np.concatenate([[0.0], np.cumsum(self.results.mass[order])])
        output = ahead[np.searchsorted(self.results.time[order], times, side="right")]
        rows: list[list[float]] = np.column_stack([times, queued, output]).round(6).tolist()
        return rows


def simulate(
    scenario: Scenario,
    spec: str,
    *,
    seconds: float | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run `spec`: a policy as the registry knows it, with an optional `@knob` to enforce it by (`hr@shares/query`).

    `os` is the operating system alone: every operator its own thread, no policy.
    """
    name, knob, grouping, mode = _parse(spec, scenario)
    seed = scenario.seed if seed is None else seed
    simulator = Simulator(scenario, mode=mode, seconds=seconds, seed=seed)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0xDEC1DE,)))
    policy = registry.create(name, rng=rng)
    execution = scenario.execution
    setting = _Setting(simulator, policy, knob, grouping, execution.period, execution.assign, rng)
    steps = sorted(scenario.change, key=lambda change: change.at)
    policies = [None if step.policy is None else registry.create(step.policy, rng=rng) for step in steps]
    for step, new in zip(steps, policies, strict=True):
        setting.run(min(step.at, simulator.seconds), progress)
        setting = setting.changed(step, new)
    setting.run(simulator.seconds, progress)
    if scenario.drain:
        setting.drain()
    setting.loops[-1].rest()
    for loop in setting.loops:
        _check_sound(loop, spec)
    return Outcome(
        label=spec,
        scenario=scenario,
        seconds=simulator.seconds,
        results=simulator.results,
        class_of_row=simulator.topology().priority,
        memory=simulator.memory,
        trace=simulator.trace,
        oldest_waiting=simulator.oldest_waiting,
        counters=simulator.counters,
        choices=tuple(policy.history) if isinstance(policy, Adaptive) else (),
        logs=tuple(loop.decisions for loop in setting.loops),
    )


@dataclass
class _Setting:
    """The settings between two changes of the scenario."""

    simulator: Simulator
    policy: Policy
    knob: str
    grouping: str | None
    period: float
    assign: str
    rng: np.random.Generator
    loops: list[Loop] = field(default_factory=list)
    """All loops so far, for their statistics at the end."""

    def run(self, until: float, progress: Progress | None) -> None:
        """Run until virtual time `until`; the policy decides in every period, or before every tuple (period 0)."""
        if self.simulator.per_unit:
            self._by_unit(self._loop(), until)
        else:
            self._loop(progress).run(until=until)

    def drain(self) -> None:
        """Run until nothing is queued."""
        sim, loop = self.simulator, self._loop()
        while not sim.drained:
            if sim.per_unit:
                self._by_unit(loop, math.inf)
            else:
                loop.run(self.period)

    def _by_unit(self, loop: Loop, until: float) -> None:
        while self.simulator.advance(until):
            loop.round(force=True)
            self.simulator.decided()

    def _loop(self, progress: Progress | None = None) -> Loop:
        self.loops.append(Loop([self.simulator], self._bindings(), clock=SimulatedClock(self.simulator, progress)))
        return self.loops[-1]

    def changed(self, change: ChangeSpec, policy: Policy | None) -> _Setting:
        """Apply a change and return the new setting. The values that a replaced policy has written are undone."""
        if change.batch is not None:
            self.simulator.set_batch(change.batch)
        if change.processors is not None:
            self.simulator.set_processors(change.processors)
        if policy is not None:
            self.loops[-1].restore()
            self.loops[-1].rest()
        if isinstance(self.policy, Adaptive) and policy is None:
            _learn_anew(self.policy, change)
        return replace(
            self, policy=policy or self.policy, period=change.period or self.period, assign=change.assign or self.assign
        )

    def _bindings(self) -> list[Binding]:
        sim, period = self.simulator, self.period or 1.0  # if every tuple is a decision, rounds are forced
        bindings = [Binding(self.policy, self.knob, period, grouping=self.grouping)]
        if self.knob == "rank" and sim.processors > 1:
            bindings.append(Binding(assigner(self.assign, sim.processors, self.rng), "owner", period))
        used = {metric for binding in bindings for metric in (*binding.policy.needs, *binding.policy.wants)}
        sim.set_delay(sim.scenario.execution.delay if intrinsic(used) else 0.0)  # Haren section 5
        return bindings


def _learn_anew(policy: Adaptive, change: ChangeSpec) -> None:
    """Change objectives and candidates; what was measured is kept. Other policies have neither."""
    if change.objectives is not None:
        policy.set_objectives(from_text(change.objectives))
    if change.candidates is not None:
        policy.set_candidates(registry.candidates(change.candidates, policy.policies))


def _parse(spec: str, scenario: Scenario) -> tuple[str, str, str | None, Mode]:
    """Parse `policy@knob/grouping`; only `shares` has a grouping, by default a group per instance."""
    name, at, way = spec.partition("@")
    knob, slash, grouping = way.partition("/")
    if name == "os":
        if at:
            raise ConfigError(f"'{spec}': policy os sets no knob", remedy="write os alone, or use another policy")
        return name, "nice", None, "os"
    if not at:
        mode = scenario.execution.mode
        return name, _KNOB_OF_MODE[mode], None, mode
    if knob not in _MODE_OF_KNOB:
        raise ConfigError(f"can't enforce '{spec}'", remedy=f"put one of {', '.join(_MODE_OF_KNOB)} after the @")
    if slash and knob != "shares":
        raise ConfigError(f"'{spec}': {knob} has no groups", remedy="use shares, or leave the grouping out")
    return name, knob, (grouping or "instance") if knob == "shares" else None, _MODE_OF_KNOB[knob]


def _check_sound(loop: Loop, spec: str) -> None:
    """Raise EngineError if anything failed: the loop continues after failures, but the figures would be wrong."""
    stats = loop.stats
    for failures in (stats.policy_failures, stats.failures, stats.knob_failures):
        for name, count in failures.items():
            if count == 0:
                continue
            how = next((text for where, text in stats.troubles.items() if name in where), "see the log")
            raise EngineError(
                f"'{name}' failed {count} times in {stats.rounds} rounds: {how}",
                where=f"policy '{spec}'",
                remedy="fix the policy; treadle --verbose shows more",
            )


def _latencies(results: Results, chosen: np.ndarray[Any, np.dtype[np.bool_]], seconds: float) -> dict[str, float]:
    latency, mass = results.latency[chosen], results.mass[chosen]
    total = float(mass.sum())
    if total == 0.0:
        return {"mean_latency": 0.0, "p50_latency": 0.0, "p99_latency": 0.0, "max_latency": 0.0, "throughput": 0.0}
    order = np.argsort(latency)
    at = np.searchsorted(np.cumsum(mass[order]), np.array([0.5, 0.99]) * total)
    p50, p99 = latency[order][np.minimum(at, len(order) - 1)]
    return {
        "mean_latency": round(float(latency @ mass) / total, 9),
        "p50_latency": round(float(p50), 9),
        "p99_latency": round(float(p99), 9),
        "max_latency": round(float(latency.max()), 9),
        "throughput": round(total / seconds, 6),
    }
