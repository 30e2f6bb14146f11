"""Small plans and snapshots for the tests of policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from treadle.model import Operator, Query, Topology
from treadle.values import Snapshot


@pytest.fixture(scope="session")
def line() -> Callable[..., Query]:
    """A query whose operators stand in a line, named a, b, c, ..."""

    def make(length: int, name: str = "q", priority: float = 0.0, goal: float | None = None) -> Query:
        names = "abcdefghijklmnopqrstuvwxyz"[:length]
        operators = tuple(Operator(n, (names[i - 1],) if i else ()) for i, n in enumerate(names))
        return Query(name, operators, priority, goal)

    return make


@pytest.fixture(scope="session")
def seen() -> Callable[..., Snapshot]:
    """A snapshot of the given columns."""

    def make(topology: Topology, **columns: Sequence[float]) -> Snapshot:
        assert all(len(values) == len(topology) for values in columns.values())
        return Snapshot(topology, 0.0, {name: np.array(values, dtype=np.float64) for name, values in columns.items()})

    return make
