"""Reads scenario files (queries, their sources, and their execution, as TOML), draws plans, and checks all graphs.

Besides explicit queries, `[[chains]]` makes many chains as in SYN of Haren and Lachesis (Haren, section 7.1), and
`[[random]]` makes a random plan with branches and joins. A wrong file raises a `ConfigError` that names the place.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from itertools import pairwise
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from treadle.engines.simulator.problems import explain, shown
from treadle.engines.simulator.spec import (
    Chains,
    ChangeSpec,
    Cost,
    Execution,
    Mode,
    OperatorSpec,
    QuerySpec,
    RandomPlan,
    Scenario,
    Selectivity,
    Source,
)
from treadle.errors import ConfigError
from treadle.model import Operator, Query, Topology

__all__ = [
    "ChangeSpec",
    "Cost",
    "Execution",
    "Mode",
    "OperatorSpec",
    "QuerySpec",
    "Scenario",
    "Selectivity",
    "Source",
    "load",
    "parse",
    "queries",
    "shipped",
    "topology",
]


def load(name: str) -> Scenario:
    """Load a scenario by its shipped name (see `shipped()`) or by the path of a TOML file."""
    path = Path(name)
    if path.suffix != ".toml":
        if name not in shipped():
            raise ConfigError(
                f"there is no scenario {name!r}",
                remedy=f"use one of {', '.join(shipped())}, or the path of a .toml file",
            )
        with resources.as_file(resources.files(__package__) / "scenarios" / f"{name}.toml") as inside:
            return parse(inside.read_text(encoding="utf-8"), where=inside.name, folder=inside.parent)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        remedy = f"to use the one that comes with Treadle, write {path.stem}" if path.stem in shipped() else ""
        raise ConfigError(f"can't be read: {error.strerror}", where=name, remedy=remedy or "check the path") from None
    except ValueError:  # such as UnicodeDecodeError, or a zero byte in the name
        raise ConfigError("is not UTF-8 text", where=name, remedy="save it as UTF-8") from None
    return parse(text, where=name, folder=path.parent)


def shipped() -> list[str]:
    """The names of the scenarios that come with Treadle."""
    folder = resources.files(__package__) / "scenarios"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def parse(text: str, *, where: str, folder: Path = Path()) -> Scenario:
    """Parse a scenario from TOML text; `where` is its name in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said, _, at = str(error).partition(" (at ")
        raise ConfigError(
            f"is not valid TOML: {said[:1].lower()}{said[1:]}",
            where=f"{where}: {at.rstrip(')')}",
            remedy="fix this place; strings need quotes, lists brackets",
        ) from None
    except (ValueError, RecursionError):
        raise ConfigError(
            "can't be parsed: a number has thousands of digits, or lists are nested too deeply",
            where=where,
            remedy="shorten the number, or flatten the lists",
        ) from None
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        place, problem, remedy = explain(error, data, Scenario)
        raise ConfigError(problem, where=f"{where}: {place}" if place else where, remedy=remedy) from None
    try:
        queries(scenario)
    except ConfigError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise ConfigError(error.message, where=place, remedy=error.remedy) from None
    return scenario.read_from(where, folder)


def queries(scenario: Scenario) -> tuple[QuerySpec, ...]:
    """Return all queries, also the drawn ones, after checking the graph of each. A seed always draws the same plans."""
    rng = np.random.default_rng(np.random.SeedSequence(scenario.seed, spawn_key=(0x9A7,)))
    specs = list(scenario.query)
    for chains in scenario.chains:
        with _drawing(f"chains '{chains.name}'"):
            specs += _chains(chains, scenario.execution.processors, rng)
    for plan in scenario.random:
        with _drawing(f"random '{plan.name}'"):
            specs.append(_random_plan(plan, scenario.execution.processors, rng))
    names = Counter(spec.name for spec in specs)
    for spec in specs:
        where = f"query '{spec.name}'"
        if names[spec.name] > 1:
            raise ConfigError("is defined twice", where=where, remedy="rename one of them")
        _check_query(spec, where)
    return tuple(specs)


@contextmanager
def _drawing(where: str) -> Iterator[None]:
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except ValidationError as error:
        value = shown(error.errors()[0]["input"])
        raise ConfigError(
            f"gives an operator a {error.title.lower()} of {value}",
            where=where,
            remedy="keep costs, selectivities and the number of operators smaller",
        ) from None


def topology(specs: tuple[QuerySpec, ...], engine: str) -> Topology:
    """Build the topology of the queries."""
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
            streams = f"{len(op.upstream) or 'no'} upstream{'' if len(op.upstream) == 1 else 's'}"
            raise ConfigError(
                f"operator '{op.name}' has a window, but {streams}",
                where=where,
                remedy="name the two upstreams that it joins, or remove window",
            )
    _check_fused(spec, query, where)


def _check_fused(spec: QuerySpec, query: Query, where: str) -> None:
    by_name = {op.name: op for op in spec.operator}
    seen: set[str] = set()
    for chain in spec.fused:
        label = "+".join(chain)
        for name in chain:
            if name not in by_name:
                known = ", ".join(by_name)
                raise ConfigError(f"fused {label}: there is no operator '{name}'", where=where, remedy=f"use {known}")
            if name in seen:
                raise ConfigError(f"operator '{name}' is fused twice", where=where, remedy="name it in one chain")
            if by_name[name].window is not None:
                raise ConfigError(
                    f"fused {label}: '{name}' is a join, whose output depends on both of its inputs",
                    where=where,
                    remedy="leave it out",
                )
            seen.add(name)
        for upper, lower in pairwise(chain):
            if by_name[lower].upstream != (upper,) or query.downstream[upper] != (lower,):
                raise ConfigError(
                    f"fused {label}: '{upper}' and '{lower}' are not connected only to each other",
                    where=where,
                    remedy="fuse neighbours of a chain, in the order of the data",
                )
        if len({by_name[name].parallelism for name in chain}) > 1:
            raise ConfigError(f"fused {label}: parallelism differs", where=where, remedy="give them all the same")


def _chains(chains: Chains, processors: int, rng: np.random.Generator) -> list[QuerySpec]:
    drawn = [_chain(chains, number, rng) for number in range(chains.count)]
    if chains.load is None or not chains.source.mean_rate:
        return drawn
    seconds = 0.0
    for spec in drawn:
        passed = chains.source.mean_rate
        for op in spec.operator:
            seconds += passed * op.cost.mean
            passed *= op.selectivity.mean
    return [_scaled(spec, chains.load * processors / seconds) for spec in drawn]


def _scaled(spec: QuerySpec, factor: float) -> QuerySpec:
    """Return the query with all costs multiplied by `factor`."""
    operators = tuple(
        op.model_copy(update={"cost": op.cost.model_copy(update={"mean": op.cost.mean * factor})})
        for op in spec.operator
    )
    return spec.model_copy(update={"operator": operators})


def _chain(chains: Chains, number: int, rng: np.random.Generator) -> QuerySpec:
    """Draw a chain as in Haren section 7.1.

    With a uniform s, each of the L operators has the selectivity s^(1/L) +-spread, except for the last, which has 1.
    With a uniform cost class z, each operator costs base * 2^z +-spread.
    """

    def around(value: float) -> float:
        return float(value * rng.uniform(1 - chains.spread, 1 + chains.spread))

    base = (chains.base_cost or 1.0) * 2.0 ** int(rng.integers(chains.cost_classes[0], chains.cost_classes[1] + 1))
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
    """Draw a plan: each operator reads from the one before it, or from an older one (branch), or from two (join)."""
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
    arrivals = plan.source.mean_rate or 1000.0
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
