"""SYN as one pipeline: every query reads all rows of one input, burns CPU for each, and keeps a share of them.

Which rows an operator keeps follows from the number of the row, so that any two runs keep the same rows and `reference`
can say which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from treadle.pipelines.api.pipeline import Pipeline
from treadle.workloads.burn import burn
from treadle.workloads.syn.queries import Operator, Query, draw, hashes
from treadle.workloads.text_lines import LINES, Source, add_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLEEPS, LONGEST_SLEEP = 0.001, 200
"""Share of the rows for which a blocking operator sleeps, and the upper limit of the sleep in milliseconds."""
_STEP, _OWN = 0.6180339887498949, 0.7548776662466927
"""Multiples of the first, modulo 1, spread evenly over 0 to 1. Each query begins at its own multiple of the second."""


def lines(count: int, *, seed: int = 0) -> list[str]:  # noqa: ARG001 - as the lines of other workloads
    """The input records, which are the same for any seed: Lachesis uses only their time stamps."""
    return [str(number) for number in range(count)]


def pipeline(
    unit: float,
    queries: Sequence[Query] | None = None,
    *,
    source: Source = "topic",
    prefix: str = "",
    name: str = "syn",
) -> Pipeline:
    """All queries, with sinks that discard their rows. `unit` is the seconds of one burn (`burn.calibrate`)."""
    p = Pipeline(name)
    for query, output in add(p, unit, draw() if queries is None else queries, source=source, prefix=prefix).items():
        p.write(query, reads=output, format="noop")
    return p


def add(
    p: Pipeline,
    unit: float,
    queries: Sequence[Query],
    *,
    source: Source = "topic",
    prefix: str = "",
) -> Mapping[str, str]:
    """Add the input and the operators to a pipeline; return by query the node that its sink reads."""
    add_lines(p, source, prefix)
    outputs: dict[str, str] = {}
    for number, query in enumerate(queries):
        upstream = f"q{number}_source"
        p.operator(name=upstream, inputs=(LINES,))(_source(number))
        for place, each in enumerate((*query.operators, Operator(query.sink, 1.0)), 1):
            last = place > len(query.operators)
            operator = f"q{number}_sink" if last else f"q{number}_{place}"
            p.operator(name=operator, inputs=(upstream,))(_operator(hashes(each.cost, unit), each))
            upstream = operator
        outputs[f"q{number}"] = upstream
    return outputs


def reference(ids: Iterable[int], queries: Sequence[Query]) -> dict[str, list[int]]:
    """Return by query the numbers of the rows that come out."""
    ids = list(ids)
    found = {}
    for number, query in enumerate(queries):
        found[f"q{number}"] = [each for each in ids if _comes_out(each, number, query)]
    return found


def _comes_out(row: int, number: int, query: Query) -> bool:
    v = (row * _STEP + number * _OWN) % 1.0
    for each in query.operators:
        if v >= each.selectivity:
            return False
        v = v / min(each.selectivity, 1.0)
    return True


def _source(number: int) -> Callable[[DataFrame], DataFrame]:
    def source(rows: DataFrame) -> DataFrame:
        return rows.selectExpr("id", "created", "line", f"(id * {_STEP}D + {number} * {_OWN}D) % 1.0D AS v")

    return source


def _operator(times: int, each: Operator) -> Callable[[DataFrame], DataFrame]:
    """Burn CPU for all rows, and keep those with a small `v`, which is spread evenly over 0 to 1 again afterwards."""

    def operator(rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - as everybody does

        # No filter is moved before a random expression, so dropped rows are burnt, too.
        worked = rows.withColumn("line", F.expr(f"left({burn('line', times)}, 20 + int(rand()))"))
        if each.blocks:
            sleep = f"java_method('java.lang.Thread', 'sleep', bigint(rand() * {LONGEST_SLEEP}))"
            worked = worked.withColumn("line", F.expr(f"if(rand() < {SLEEPS}, left({sleep}, 20), line)"))
        kept = worked.where(F.col("v") < each.selectivity)
        return kept.withColumn("v", F.col("v") / min(each.selectivity, 1.0))

    return operator
