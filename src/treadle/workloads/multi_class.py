"""Haren's multi-class scenario on Spark (section 7.4): few urgent queries with bursts, and many others.

Each query is a chain of operators with costs and selectivities of its own. A cost is a calibrated native expression, so
the load is the wanted share of the cores on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from treadle.enforce.gate.slots import usable_cores
from treadle.errors import ConfigError
from treadle.pipelines.api.pipeline import Pipeline
from treadle.workloads.burn import burn
from treadle.workloads.generator import SCHEMA, Flow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from treadle.pipelines.run.run import Run
LOAD = 1.3
"""The load as a share of all cores: more than the machine can process, even without Spark's cost per batch."""


@dataclass(frozen=True)
class Chain:
    """One query: its rate at the source and, for each operator, the hashes per row and the share of rows it keeps."""

    name: str
    urgent: bool
    rate: float
    burns: tuple[int, ...]
    keeps: tuple[float, ...]
    on: float = 1.0
    off: float = 0.0
    whole: bool = False
    """Whether dropped rows cost CPU, too. Otherwise Spark's optimizer drops them before the work."""

    @property
    def feed(self) -> str:
        return f"{self.name}_in"

    @property
    def selectivity(self) -> float:
        return math.prod(self.keeps)


def chains(
    unit: float,
    load: float = LOAD,
    *,
    high: int = 3,
    low: int = 10,
    length: int = 1,
    row_cost: float = 50e-6,
    bursts: tuple[float, float] = (2.0, 2.0),
    cores: float | None = None,
    seed: int = 1,
) -> tuple[Chain, ...]:
    """Draw the queries. `unit` is the cost of one burn in seconds (`burn.calibrate`); `load` is a share of all cores.

    All queries have the same share of the load, averaged over time. The cost of a row over a whole chain is `row_cost`
    seconds times 1/4 to 4, drawn for each query. Urgent queries get bursts: `bursts` are the seconds on and off.
    """
    if high < 0 or low < 0 or high + low < 1 or length < 1:
        raise ConfigError(f"high={high}, low={low}, length={length}", remedy="use at least one query and operator")
    random = np.random.default_rng(seed)
    found = []
    for urgent, count in ((True, high), (False, low)):
        for number in range(count):
            cost = row_cost * float(4.0 ** random.uniform(-1, 1))
            keeps = tuple(float(keep) for keep in random.uniform(0.3, 1.0, length))
            reach = np.cumprod([1.0, *keeps[:-1]])
            shares = random.dirichlet(np.full(length, 4.0))
            burns = tuple(max(1, round(cost * s / r / unit)) for s, r in zip(shares, reach, strict=True))
            true_cost = float(np.dot(burns, reach)) * unit
            rate = load * (cores or usable_cores()) / (high + low) / true_cost
            on, off = bursts if urgent else (1.0, 0.0)
            name = f"{'high' if urgent else 'low'}{number}"
            found.append(Chain(name, urgent, rate * (on + off) / on, burns, keeps, on, off))
    return tuple(found)


def pipeline(queries: Sequence[Chain], name: str = "multi-class") -> Pipeline:
    """The queries as one pipeline: each has a feed, its operators, and a sink that discards all rows."""
    p = Pipeline(name)
    for query in queries:
        p.feed(query.feed, schema=SCHEMA)
        upstream = query.feed
        for number, (times, keep) in enumerate(zip(query.burns, query.keeps, strict=True)):
            operator = f"{query.name}_{number}"
            p.operator(name=operator, inputs=(upstream,))(_operator(times, keep, whole=query.whole))
            upstream = operator
        p.write(query.name, reads=upstream, format="noop", priority=1 if query.urgent else 0)
    return p


def flows(queries: Sequence[Chain], run: Run) -> list[Flow]:
    """The load of each feed of a run, for a `Generator`."""
    return [Flow(str(run.folder.channel(query.feed)), query.rate, query.on, query.off) for query in queries]


def _operator(times: int, keep: float, *, whole: bool) -> Callable[[DataFrame], DataFrame]:
    def operator(rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody does

        length = "68 + int(rand())" if whole else "68"  # no filter is moved before a random expression
        kept = rows.withColumn("payload", F.expr(f"left({burn('payload', times)}, {length})")).where(F.col("v") < keep)
        return kept.withColumn("v", F.col("v") / keep)  # uniform again

    return operator
