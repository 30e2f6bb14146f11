"""Scenario files: queries, their sources, and how they are run, as TOML. Knows what is valid, not how it is simulated.

Besides queries written out, `[[chains]]` makes many chains as Haren's and Lachesis' SYN do (paper 000, section 7.1),
and `[[random]]` makes a random plan with branches and joins. A wrong file is one `ConfigError` that names the place.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from treadle.errors import ConfigError
from treadle.model import Operator, Query, Topology

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\s.\[\]:+]+$")]
Mode = Literal["cooperative", "os", "realtime"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Strict):
    """How tuples arrive: at a constant rate, in bursts, as Poisson, in steps, from a trace, or in counted ticks."""

    pattern: Literal["constant", "bursts", "poisson", "step", "trace", "ticks"] = "constant"
    rate: NotNegative | None = None
    start: NotNegative = 0.0
    stop: Positive | None = None
    # bursts: `rate` for `on` seconds, then `idle_rate` for `off` seconds
    on: Positive = 5.0
    off: NotNegative = 15.0
    idle_rate: NotNegative = 0.0
    # poisson: the mean is drawn anew from `between` every `redraw` seconds (AMoS section 4.1)
    between: tuple[NotNegative, NotNegative] | None = None
    redraw: Positive = 5.0
    # step: `rate`, and `step` more every `every` seconds; ticks: `counts[i]` tuples at `start + i * every`
    step: float = 100.0
    every: Positive = 30.0
    counts: tuple[Annotated[int, Field(ge=0)], ...] = ()
    # trace: a file of arrival times in seconds, one a line, relative to the scenario
    file: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Source:
        if self.pattern in ("constant", "bursts", "step") and self.rate is None:
            raise ValueError(f"a {self.pattern} source needs a rate: add rate = 1000")
        if self.pattern == "poisson" and (self.rate is None) == (self.between is None):
            raise ValueError("a poisson source needs either rate = 1000 or between = [500, 1500]")
        if self.between is not None and self.between[0] > self.between[1]:
            raise ValueError("between = [low, high] has its low above its high: swap them")
        if self.pattern == "trace" and not self.file:
            raise ValueError('a trace source needs a file: add file = "arrivals.txt"')
        if self.pattern == "ticks" and not self.counts:
            raise ValueError("a ticks source needs counts: add counts = [2, 2, 0]")
        if self.stop is not None and self.stop <= self.start:
            raise ValueError("stop is not after start: raise stop")
        return self


class Cost(_Strict):
    """CPU seconds per tuple."""

    mean: Positive
    distribution: Literal["constant", "uniform", "exponential"] = "constant"
    spread: Annotated[float, Field(ge=0, le=1)] = 0.1


class Selectivity(_Strict):
    """Output tuples per input tuple; for a join, outputs per pair within the window."""

    mean: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
    distribution: Literal["bernoulli", "poisson", "even"] = "bernoulli"


class Blocking(_Strict):
    """A tuple makes its thread sleep with this probability, for up to this long (Lachesis section 6.4)."""

    probability: Annotated[float, Field(gt=0, le=1)]
    seconds: Positive


def _number_is_mean(value: object) -> object:
    return {"mean": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


class OperatorSpec(_Strict):
    """An operator of a query. One without upstream needs a source."""

    name: Name
    upstream: tuple[str, ...] = ()
    cost: Annotated[Cost, BeforeValidator(_number_is_mean)]
    selectivity: Annotated[Selectivity, BeforeValidator(_number_is_mean)] = Selectivity(mean=1.0)
    source: Source | None = None
    parallelism: Annotated[int, Field(ge=1, le=1024)] = 1
    capacity: Annotated[int, Field(ge=1)] | None = None
    window: Positive | None = None
    helper_cost: Positive | None = None
    blocking: Blocking | None = None


class QuerySpec(_Strict):
    """A query, with what its owner wants; `fused` operators run as one instance."""

    name: Name
    priority: float = 0.0
    latency_goal: Positive | None = None
    operator: tuple[OperatorSpec, ...] = Field(min_length=1)
    fused: tuple[tuple[str, ...], ...] = ()


class Chains(_Strict):
    """Many chains, drawn as Haren draws them: cost class z, query cost base * 2^z, each operator +-spread."""

    name: Name
    count: Annotated[int, Field(ge=1, le=10_000)]
    length: Annotated[int, Field(ge=1, le=100)]
    base_cost: Positive
    cost_classes: tuple[Annotated[int, Field(ge=0, le=20)], Annotated[int, Field(ge=0, le=20)]] = (0, 4)
    selectivity: tuple[Positive, Positive] = (0.01, 1.0)
    spread: Annotated[float, Field(ge=0, lt=1)] = 0.1
    priority: float = 0.0
    latency_goal: Positive | None = None
    blocking_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    blocking: Blocking | None = None
    source: Source


class RandomPlan(_Strict):
    """A random plan of a given number of operators, with branches and joins."""

    name: Name
    operators: Annotated[int, Field(ge=2, le=1000)]
    load: Annotated[float, Field(gt=0, le=10)] = 0.9
    branch: Annotated[float, Field(ge=0, le=1)] = 0.2
    join: Annotated[float, Field(ge=0, le=1)] = 0.1
    selectivity: tuple[Positive, Positive] = (0.3, 1.3)
    source: Source


class Execution(_Strict):
    """How nodes get the CPU. `period` 0 decides anew after every tuple (cooperative only)."""

    mode: Mode = "cooperative"
    processors: Annotated[int, Field(ge=1, le=64)] = 1
    period: NotNegative = 0.1
    batch: Annotated[int, Field(ge=1)] = 10
    delay: NotNegative = 0.0
    assign: Literal["random", "round-robin", "load-balance", "adaptive"] = "random"
    fluid: bool = False
    known: bool = False
    """Cost and selectivity are known from the start instead of being measured."""
    switch_cost: NotNegative = 0.0
    schedule_cost: NotNegative = 0.0
    time_slice: Positive = 0.003
    rr_slice: Positive = 0.1

    @model_validator(mode="after")
    def _possible(self) -> Execution:
        if self.mode != "cooperative" and self.period == 0:
            raise ValueError("period = 0 is for the cooperative mode: give a period such as 0.1")
        if self.fluid and (self.period != 0 or self.batch != 1):
            raise ValueError("a fluid plan serves one unit at a time: set period = 0 and batch = 1")
        return self


class ChangeSpec(_Strict):
    """What changes while the scenario runs."""

    at: NotNegative
    processors: Annotated[int, Field(ge=1, le=64)] | None = None
    batch: Annotated[int, Field(ge=1)] | None = None
    period: Positive | None = None
    policy: str | None = None
    assign: Literal["random", "round-robin", "load-balance", "adaptive"] | None = None


class Scenario(_Strict):
    """A whole scenario file."""

    title: str
    description: str = ""
    seconds: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    warm_up: NotNegative = 0.0
    drain: bool = False
    """Go on after `seconds` until nothing is queued."""
    trace: bool = False
    """Keep the queues at every event."""
    policies: tuple[str, ...] = ("fifo",)
    seed: Annotated[int, Field(ge=0)] = 1
    execution: Execution = Execution()
    query: tuple[QuerySpec, ...] = ()
    chains: tuple[Chains, ...] = ()
    random: tuple[RandomPlan, ...] = ()
    change: tuple[ChangeSpec, ...] = ()
    folder: Path = Field(default=Path(), exclude=True)
    """Where the file is, for traces beside it."""

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        if not (self.query or self.chains or self.random):
            raise ValueError("there is nothing to run: add a [[query]], [[chains]] or [[random]]")
        if self.warm_up >= self.seconds:
            raise ValueError(f"warm_up = {self.warm_up:g} leaves nothing of seconds = {self.seconds:g}: lower it")
        return self


def load(name: str) -> Scenario:
    """A scenario by its shipped name (see `shipped()`) or by the path of a TOML file."""
    path = Path(name)
    if path.suffix != ".toml":
        inside = resources.files(__package__) / "scenarios" / f"{name}.toml"
        if not inside.is_file():
            raise ConfigError(
                f"there is no scenario '{name}'",
                remedy=f"use one of {', '.join(shipped())}, or the path of a .toml file",
            )
        with resources.as_file(inside) as shipped_path:
            return parse(inside.read_text(encoding="utf-8"), where=f"{name}.toml", folder=shipped_path.parent)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"can't read the scenario: {reason}", where=name, remedy="check the path") from None
    return parse(text, where=name, folder=path.parent)


def shipped() -> list[str]:
    """The names of the scenarios that come with Treadle."""
    folder = resources.files(__package__) / "scenarios"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def parse(text: str, *, where: str, folder: Path = Path()) -> Scenario:
    """A scenario from TOML text; `where` is named in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not valid TOML: {error}", where=where, remedy="mend the line it names") from None
    try:
        scenario = Scenario.model_validate({**data, "folder": folder})
    except ValidationError as error:
        raise ConfigError(*_first_problem(error, data), where=where, remedy=_remedy(error)) from None
    try:
        queries(scenario)
    except ConfigError as error:
        raise ConfigError(error.message, where=f"{where}: {error.where}", remedy=error.remedy) from None
    return scenario


def queries(scenario: Scenario) -> tuple[QuerySpec, ...]:
    """All queries written out, each checked as a graph; the same seed draws the same plans."""
    rng = np.random.default_rng(np.random.SeedSequence(scenario.seed, spawn_key=(0x9A7,)))
    specs = list(scenario.query)
    for chains in scenario.chains:
        specs += [_chain(chains, number, rng) for number in range(chains.count)]
    for plan in scenario.random:
        specs.append(_random_plan(plan, scenario.execution.processors, rng))
    names = Counter(spec.name for spec in specs)
    for spec in specs:
        where = f"query '{spec.name}'"
        if names[spec.name] > 1:
            raise ConfigError("is there twice", where=where, remedy="rename one of them")
        _check_query(spec, where)
    return tuple(specs)


def topology(specs: tuple[QuerySpec, ...], engine: str) -> Topology:
    """The model's view of the queries."""
    return Topology.of(
        [_query(spec) for spec in specs],
        parallelism={(spec.name, op.name): op.parallelism for spec in specs for op in spec.operator},
        fused=[(spec.name, chain) for spec in specs for chain in spec.fused],
        engine=engine,
    )


def _query(spec: QuerySpec) -> Query:
    operators = tuple(Operator(op.name, op.upstream) for op in spec.operator)
    return Query(spec.name, operators, spec.priority, spec.latency_goal)


def _check_query(spec: QuerySpec, where: str) -> None:
    query = _query(spec)
    by_name = {op.name: op for op in spec.operator}
    for op in spec.operator:
        if not op.upstream and op.source is None:
            raise ConfigError(
                f"operator '{op.name}' has neither upstream nor source",
                where=where,
                remedy='add upstream = ["…"] or source = { rate = 1000 }',
            )
        if op.upstream and op.source is not None:
            raise ConfigError(
                f"operator '{op.name}' has both upstream and source", where=where, remedy="remove one of the two"
            )
        if op.window is not None and len(op.upstream) != 2:
            raise ConfigError(
                f"operator '{op.name}' joins {len(op.upstream)} streams",
                where=where,
                remedy="a window join has exactly two upstreams; remove window or name two",
            )
    seen: set[str] = set()
    for chain in spec.fused:
        label = " + ".join(chain)
        for name in chain:
            if name not in by_name:
                raise ConfigError(f"fused {label}: there is no operator '{name}'", where=where, remedy="check its name")
            if name in seen:
                raise ConfigError(f"operator '{name}' is fused twice", where=where, remedy="name it in one chain")
            seen.add(name)
        for upper, lower in pairwise(chain):
            if by_name[lower].upstream != (upper,) or query.downstream[upper] != (lower,):
                raise ConfigError(
                    f"fused {label}: '{upper}' and '{lower}' are not neighbours in a chain",
                    where=where,
                    remedy="fuse only operators that have each other as only neighbour",
                )
        if len({by_name[name].parallelism for name in chain}) > 1:
            raise ConfigError(f"fused {label}: parallelism differs", where=where, remedy="give them all the same")


def _chain(chains: Chains, number: int, rng: np.random.Generator) -> QuerySpec:
    """Paper 000 section 7.1: query selectivity s uniform, each operator s^(1/L) +-spread; query cost base * 2^z."""

    def around(value: float) -> float:
        return float(value * rng.uniform(1 - chains.spread, 1 + chains.spread))

    base = chains.base_cost * 2.0 ** int(rng.integers(chains.cost_classes[0], chains.cost_classes[1] + 1))
    each = float(rng.uniform(*chains.selectivity)) ** (1.0 / chains.length)
    operators: list[OperatorSpec] = []
    for at in range(chains.length):
        last = at == chains.length - 1
        blocks = chains.blocking if rng.uniform() < chains.blocking_share else None
        operators.append(
            OperatorSpec(
                name=f"op{at + 1}",
                upstream=(f"op{at}",) if at else (),
                cost=Cost(mean=around(base)),
                selectivity=Selectivity(mean=1.0 if last else around(each)),
                source=None if at else chains.source,
                blocking=blocks,
            )
        )
    return QuerySpec(
        name=f"{chains.name}-{number + 1}",
        priority=chains.priority,
        latency_goal=chains.latency_goal,
        operator=tuple(operators),
    )


def _random_plan(plan: RandomPlan, processors: int, rng: np.random.Generator) -> QuerySpec:
    """Each operator reads from an earlier one, mostly the last, sometimes an older one (branch) or two (join)."""
    upstream: list[tuple[int, ...]] = [()]
    for at in range(1, plan.operators):
        first = int(rng.integers(0, at)) if rng.uniform() < plan.branch else at - 1
        others = [i for i in range(at) if i != first]
        joins = bool(others) and rng.uniform() < plan.join
        upstream.append((first, int(rng.choice(others))) if joins else (first,))
    selectivity = rng.uniform(*plan.selectivity, size=plan.operators)
    weight = rng.lognormal(0.0, 0.5, size=plan.operators)
    flow = np.zeros(plan.operators)
    flow[0] = 1.0
    for at in range(1, plan.operators):
        flow[at] = sum(flow[up] * selectivity[up] for up in upstream[at])
    arrivals = plan.source.rate or (sum(plan.source.between) / 2.0 if plan.source.between else 1000.0)
    unit = plan.load * processors / (arrivals * float((flow * weight).sum()))
    names = [f"op{at + 1}" for at in range(plan.operators)]
    return QuerySpec(
        name=plan.name,
        operator=tuple(
            OperatorSpec(
                name=names[at],
                upstream=tuple(names[up] for up in upstream[at]),
                cost=Cost(mean=float(weight[at] * unit)),
                selectivity=Selectivity(mean=float(selectivity[at])),
                source=None if at else plan.source,
            )
            for at in range(plan.operators)
        ),
    )


def _first_problem(error: ValidationError, data: dict[str, Any]) -> tuple[str]:
    """The first problem with its place as the file writes it: query[2].operator[1].cost; counted from one."""
    problem = error.errors()[0]
    place = ""
    inside: Any = data
    for step in problem["loc"]:
        if isinstance(step, int):
            place += f"[{step + 1}]"
            inside = inside[step] if isinstance(inside, list | tuple) and step < len(inside) else None
        elif isinstance(inside, dict) or inside is None:
            place += f".{step}" if place else str(step)
            inside = inside.get(step) if isinstance(inside, dict) else None
    text = problem["msg"].removeprefix("Value error, ").split(": ")[0]
    if problem["type"] == "extra_forbidden":
        text = "is not a known key"
    elif problem["type"] == "missing":
        text = "is missing"
    value = problem["input"]
    shown = f", not {value!r}" if isinstance(value, str | int | float) and problem["type"] != "extra_forbidden" else ""
    return (f"{place}: {text[:1].lower() + text[1:]}{shown}" if place else text,)


def _remedy(error: ValidationError) -> str:
    problem = error.errors()[0]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error" and ": " in message:
        return message.split(": ", 1)[1]
    if problem["type"] == "extra_forbidden":
        return "remove it or check its spelling"
    if problem["type"] == "missing":
        return "add it"
    return "mend this value"
