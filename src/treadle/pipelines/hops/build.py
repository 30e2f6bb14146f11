"""Builds the Structured Streaming query of each hop: which DataFrame it runs, and where the rows are written.

This calls the user's functions; if one fails, the error names the function's node. No query is started here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError, EngineError, TreadleError
from treadle.estimates import WEIGHT, check_weight
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.hops import source_metrics
from treadle.pipelines.nodes.node import Kind, Node, not_yours
from treadle.pipelines.spark.queries import interruptible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Sources = Mapping[str, Source]
Shed = Callable[["DataFrame", str, str], "DataFrame"]
"""A function (rows, producer, consumer) -> rows: returns the rows without those that are dropped between two nodes."""


def everything(rows: DataFrame, _producer: str, _consumer: str) -> DataFrame:
    """Return all rows: nothing is shed."""
    return rows


_STATEFUL = re.compile(
    r"\b(Aggregate|Deduplicate\w*|\w*MapGroups\w*State|TransformWithState\w*|EventTimeWatermark|Join)\b"
)


@dataclass(frozen=True)
class Plan:
    """The plan of one hop: the channels that it reads, the DataFrame that it runs, and its last node."""

    node: Node
    inputs: tuple[Source, ...]
    rows: DataFrame
    foreign: tuple[str, ...] = ()
    """Sources that the query reads directly, not through a channel."""

    @property
    def stateful(self) -> bool:
        """Whether the hop may have work to do without new rows, as when a timeout is due or a window closes."""
        if self.node.stateful is not None:
            return self.node.stateful
        return bool(_STATEFUL.search(str(self.rows._jdf.queryExecution().analyzed())))


def hop(node: Node, spark: SparkSession, channels: Sources, key: str, shed: Shed = everything) -> Plan:
    """The plan of one node in the layout `hops`: each input is read from a channel."""
    inputs = tuple(channels[name] for name in node.inputs)
    rows = [shed(channels[name].read(spark, key, node.name), name, node.name) for name in node.inputs]
    if node.kind is Kind.SOURCE:
        return Plan(node, (), from_source(node, spark), (node.name,))
    if node.kind is not Kind.OPERATOR:
        return Plan(node, inputs, rows[0])
    made = called(node, *rows)
    for name in made.columns:
        if made.columns.count(name) > 1:
            raise ConfigError(
                f"column '{name}' is returned more than once", where=node.where, remedy="give each its own name"
            )
    return Plan(node, inputs, made)


def fused(
    node: Node,
    nodes: Mapping[str, Node],
    spark: SparkSession,
    channels: Sources,
    key: str,
    shed: Shed = everything,
) -> Plan:
    """The plan of a sink in the layout `fused`: one query with all it needs; only feeds and topics are channels."""
    made: dict[str, DataFrame] = {}
    read: list[Source] = []

    def rows_of(name: str) -> DataFrame:
        if name not in made:
            upstream = nodes[name]
            if upstream.kind is Kind.SOURCE:
                made[name] = shed(source_metrics.watched(upstream, from_source(upstream, spark)), name, node.name)
            elif upstream.kind is Kind.OPERATOR:
                made[name] = called(upstream, *[rows_of(each) for each in upstream.inputs])
            else:
                read.append(channels[name])
                made[name] = shed(channels[name].read(spark, key, node.name), name, node.name)
        return made[name]

    rows = rows_of(node.inputs[0])
    foreign = tuple(name for name in made if nodes[name].kind is Kind.SOURCE)
    return Plan(node, tuple(read), rows, foreign)


def writer(plan: Plan) -> Any:
    """The stream writer of a sink, ready to start: one of Spark's own, or `foreachBatch` with the user's function."""
    if plan.node.kind is Kind.WRITER:
        return plan.rows.writeStream.format(str(plan.node.format)).options(**plan.node.options)
    return plan.rows.writeStream.foreachBatch(sink(plan.node))


def sink(node: Node) -> Callable[[DataFrame, int], None]:
    """Return the function (rows, batch id) that writes one batch of a sink."""
    if node.kind is Kind.WRITER:

        def write(rows: DataFrame, _: int) -> None:
            rows.write.format(str(node.format)).options(**node.options).mode("append").save()

        return write
    function = node.function
    assert function is not None

    def call(rows: DataFrame, batch_id: int) -> None:
        with interruptible():
            if node.takes_batch_id:
                function(rows, batch_id)
            else:
                function(rows)

    return call


def from_source(source: Node, spark: SparkSession) -> DataFrame:
    """Call the function of a source, and check its arrival column if it names one."""
    rows = called(source, spark)
    source_metrics.check(source, rows)
    return rows


def called(node: Node, *arguments: Any) -> DataFrame:
    """Call the user's function of a node, which must return a streaming DataFrame."""
    from pyspark.sql import DataFrame

    assert node.function is not None
    try:
        rows = node.function(*arguments)
    except TreadleError:
        raise
    except Exception as error:
        text = str(error).partition("\n")[0] or type(error).__name__
        raise EngineError(
            f"its function raised {type(error).__name__}: {text}",
            where=node.where,
            remedy="see its code and its inputs",
        ) from error
    if not isinstance(rows, DataFrame):
        remedy = "return the DataFrame" if rows is None else "return a DataFrame"
        raise ConfigError(f"its function gave {type(rows).__name__}, not a DataFrame", where=node.where, remedy=remedy)
    check_weight(rows.columns, node.where)
    if WEIGHT in rows.columns and not any(WEIGHT in each.columns for each in arguments if isinstance(each, DataFrame)):
        raise not_yours(node.where)
    if not rows.isStreaming:
        raise ConfigError(
            "its function returned rows that are not a stream",
            where=node.where,
            remedy="derive them from spark.readStream or its inputs",
        )
    return rows
