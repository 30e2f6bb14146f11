"""From a pipeline and a layout to Structured Streaming queries: which DataFrame each hop runs, and where it goes.

It calls the user's functions and says whose fault it is when they fail. It starts nothing.
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
"""What is left of the rows that one node gives to another."""


def everything(rows: DataFrame, _producer: str, _consumer: str) -> DataFrame:
    """Nothing is shed."""
    return rows


_STATEFUL = re.compile(
    r"\b(Aggregate|Deduplicate\w*|\w*MapGroups\w*State|TransformWithState\w*|EventTimeWatermark|Join)\b"
)


@dataclass(frozen=True)
class Plan:
    """One hop to be: what it reads of our channels, its rows, and the node whose output or sink it is."""

    node: Node
    inputs: tuple[Source, ...]
    rows: DataFrame
    foreign: tuple[str, ...] = ()
    """The sources in it whose rows no channel of ours holds."""

    @property
    def stateful(self) -> bool:
        """Whether it may have something to do although no row came: a timeout, a window that closes."""
        if self.node.stateful is not None:
            return self.node.stateful
        return bool(_STATEFUL.search(str(self.rows._jdf.queryExecution().analyzed())))


def hop(node: Node, spark: SparkSession, channels: Sources, key: str, shed: Shed = everything) -> Plan:
    """The plan of one operator: everything it reads comes out of a channel."""
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
                f"column '{name}' is there more than once", where=node.where, remedy="give each its own name"
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
    """The plan of a sink with all that it needs: only feeds and topics are channels, the rest is one query."""
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
    """The query of a sink, ready to be started: one of Spark's own writers, or the user's function of batches."""
    if plan.node.kind is Kind.WRITER:
        return plan.rows.writeStream.format(str(plan.node.format)).options(**plan.node.options)
    return plan.rows.writeStream.foreachBatch(sink(plan.node))


def sink(node: Node) -> Callable[[DataFrame, int], None]:
    """What is done with a batch of a sink."""
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
    """The rows of a source, whose arrival column is there if it names one."""
    rows = called(source, spark)
    source_metrics.check(source, rows)
    return rows


def called(node: Node, *arguments: Any) -> DataFrame:
    """What the user's function of a node gives, which must be a stream."""
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
            "its rows are no stream", where=node.where, remedy="begin with spark.readStream, and keep to its inputs"
        )
    return rows
