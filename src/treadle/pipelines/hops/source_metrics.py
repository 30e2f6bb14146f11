"""Measures how many rows a query reads directly from a source, and their arrival times, by `DataFrame.observe`.

Spark counts while the batch runs, without an extra job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.errors import ConfigError
from treadle.pipelines.channels.ledger import ArrivalStats
from treadle.pipelines.nodes.node import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def check(node: Node, rows: DataFrame) -> None:
    """Raise a ConfigError unless the source's arrival column exists and is a timestamp."""
    if node.arrival is None:
        return
    types = dict(rows.dtypes)
    if types.get(node.arrival) != "timestamp":
        found = f"is of type {types[node.arrival]}" if node.arrival in types else "does not exist"
        times = [name for name, kind in types.items() if kind == "timestamp"]
        remedy = f"name one of {', '.join(times)}" if times else "give a column of timestamps, or leave arrival out"
        raise ConfigError(f"its arrival column '{node.arrival}' {found}", where=node.where, remedy=remedy)


def watched(node: Node, rows: DataFrame) -> DataFrame:
    """Return the same rows, with an observation that counts them and their arrival times."""
    from pyspark.sql import functions as f

    arrived = f.lit(None).cast("bigint") if node.arrival is None else f.unix_micros(f.col(f"`{node.arrival}`"))
    count = f.count(f.lit(1)).alias("rows")
    return rows.observe(_observed(node.name), count, f.min(arrived).alias("oldest"), f.avg(arrived).alias("mean"))


def seen(query: StreamingQuery, name: str, start: float, end: float) -> ArrivalStats | None:
    """Return how many rows the running batch has read of a source and when they arrived; None if it read none.

    Call it after the rows were used. Without an arrival column, rows count as arrived between `start` and `end`.
    """
    found = query._jsq.streamingQuery().lastExecution().observedMetrics().get(_observed(name))
    if found.isEmpty() or not found.get().getLong(0):
        return None
    row = found.get()
    if row.isNullAt(1):
        return ArrivalStats(int(row.getLong(0)), int(start * 1e6), int((start + end) / 2 * 1e6))
    return ArrivalStats(int(row.getLong(0)), int(row.getLong(1)), int(row.getDouble(2)))


def _observed(name: str) -> str:
    return f"treadle-arrivals-{name}"
