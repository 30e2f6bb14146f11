"""The queries of SYN, drawn as Lachesis' program draws them (section 6.3), and as chains with a load for this machine.

All queries read the same number of rows. Some are cheap and productive, others are cheap and drop most rows. So a
policy for early results (HR) and a policy for short queues (Chain) must choose different orders.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.enforce.gate.slots import usable_cores
from treadle.workloads.multi_class import Chain
from treadle.workloads.syn.java_random import JavaRandom

QUERIES, LENGTH = 20, 3
"""Number of queries, and of operators in each, without source and sink."""
BASE_COST = 400
"""Cost of an operator of the cheapest class, in multiplications; each of the `CLASSES` costs twice as much."""
CLASSES = 6
LEAST_KEPT = 0.01
"""The least share of its rows that a query keeps on average over its operators' drawn selectivities."""
SPREAD = 0.1
"""Costs and selectivities of operators differ from those of their query by at most this share."""
BLOCKING = 0.1
"""The share of blocking operators in the variant with blocking."""
STEP = 25e-9
"""CPU seconds per unit of the paper's costs: with less, cheap queries would cost less than Spark's per-row work."""


class Operator(NamedTuple):
    """An operator's cost in multiplications, and the share of its rows that it keeps; above 1 it keeps all."""

    cost: int
    selectivity: float
    blocks: bool = False
    """Whether it sleeps for some rows."""


class Query(NamedTuple):
    """A chain of operators, and the cost of its sink."""

    operators: tuple[Operator, ...]
    sink: int

    @property
    def egress(self) -> float:
        """Rows that come out for each row that goes in."""
        return float(np.prod([min(1.0, each.selectivity) for each in self.operators]))


def draw(count: int = QUERIES, *, seed: int = 0, blocking: bool = False) -> tuple[Query, ...]:
    """Draw the queries. With `blocking` some operators sleep, and all have exactly the values of their query."""
    random = JavaRandom(seed)
    return tuple(_drawn(random, blocking=blocking) for _ in range(count))


def chains(unit: float, load: float, count: int = QUERIES, *, cores: float | None = None) -> tuple[Chain, ...]:
    """The first `count` queries. `unit` is the seconds of one burn (`burn.calibrate`), `load` a share of all cores."""
    queries = draw(count)
    burns = [tuple(hashes(each.cost, unit) for each in query.operators) for query in queries]
    keeps = [tuple(min(1.0, round(each.selectivity, 3)) for each in query.operators) for query in queries]
    reach = [np.cumprod([1.0, *each[:-1]]) for each in keeps]
    cost = sum(float(np.dot(burn, part)) * unit for burn, part in zip(burns, reach, strict=True))
    rate = load * (cores or usable_cores()) / cost
    pairs = enumerate(zip(burns, keeps, strict=True))
    return tuple(Chain(f"q{number}", False, rate, burn, keep, whole=True) for number, (burn, keep) in pairs)


def hashes(cost: int, unit: float) -> int:
    """Convert a cost in multiplications to hashes that take `unit` seconds each."""
    return max(1, round(cost * STEP / unit))


def _drawn(random: JavaRandom, *, blocking: bool) -> Query:
    least = LEAST_KEPT ** (1 / LENGTH)
    cost = BASE_COST << random.integer(CLASSES)
    selectivity = least + random.real() * (1.0 - least)

    def about_cost() -> int:
        low, high = round((1.0 - SPREAD) * cost), round((1.0 + SPREAD) * cost)
        return low + random.integer(high - low + 1)

    def operator() -> Operator:
        if blocking:
            return Operator(cost, selectivity, random.real() < BLOCKING)
        return Operator(about_cost(), (1.0 - SPREAD) * selectivity + random.real() * 2.0 * SPREAD * selectivity)

    operators = tuple(operator() for _ in range(LENGTH))
    return Query(operators, cost if blocking else about_cost())
