"""Small scenarios, and ways to let them run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from treadle.engines.simulator.engine import Simulator
from treadle.engines.simulator.scenario import Execution, OperatorSpec, QuerySpec, Scenario

Build = Callable[..., Simulator]


@pytest.fixture(scope="session")
def simulator() -> Build:
    """A simulator of operators given as keyword tables; those of one `query` (or all) are one query."""

    def make(
        *operators: dict[str, Any],
        seconds: float = 10.0,
        seed: int = 1,
        query: dict[str, Any] | None = None,
        **keys: Any,
    ) -> Simulator:
        by_query: dict[str, list[OperatorSpec]] = {}
        for operator in operators:
            rest = {key: value for key, value in operator.items() if key != "query"}
            by_query.setdefault(operator.get("query", "q"), []).append(OperatorSpec(**rest))
        queries = tuple(
            QuerySpec(name=name, operator=tuple(specs), **(query or {})) for name, specs in by_query.items()
        )
        execution = Execution(**keys)
        return Simulator(Scenario(title="t", seconds=seconds, seed=seed, execution=execution, query=queries))

    return make


@pytest.fixture(scope="session")
def run() -> Callable[..., None]:
    """Let time pass until then, or until all is drained; where a choice is asked for, the order stays as it is."""

    def go(sim: Simulator, until: float = math.inf) -> None:
        while sim.advance(until):
            sim.decided()

    return go
