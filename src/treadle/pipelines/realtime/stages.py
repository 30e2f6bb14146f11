"""The `realtime` layout: each sink with all it needs is one query in Spark's real-time mode, each operator a stage.

A stage is a thread that lives as long as a batch, like the one thread per operator of Lachesis (section 2): the
operating system decides which stage gets the CPU, steered by `treadle attach`. Pipelines that real-time mode can't run
are refused before any query starts. This layout has no gate and no policy of its own.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from treadle.decide.policy import Policy
from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.slots import usable_cores
from treadle.engines.spark.queries.progress import Progress
from treadle.errors import ConfigError
from treadle.loop import Loop
from treadle.pipelines.channels import encoded
from treadle.pipelines.channels.topic import Topic
from treadle.pipelines.gating.foreach_batch_gate import note_bad_rows
from treadle.pipelines.gating.steering import Steering
from treadle.pipelines.hops import build, source_metrics
from treadle.pipelines.hops.hop import Hop, State
from treadle.pipelines.hops.options import Options, text_of
from treadle.pipelines.nodes import graph
from treadle.pipelines.nodes.node import Kind, Node
from treadle.pipelines.realtime import plans
from treadle.pipelines.spark import queries
from treadle.pipelines.spark.ending import Stops

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

FORMATS = ("kafka", "noop", "console")
"""Spark's writers that write each row at once. `foreach` does not: it runs Python, which gets rows at a batch's end."""
LOOK = 0.01
_MODE = "spark.sql.streaming.realTimeMode"
_READS = re.compile("treadle (.+) reads .+")


class NoGateSteering(Steering):
    """Steering without a gate: refuses every change, and names the `treadle attach` command to use instead."""

    def __init__(self, gate: Gate, where: str) -> None:
        super().__init__(gate, "none", elastic=False, where=where)

    def _prepared_policy(self, loop: Loop, spec: str | Policy) -> Callable[[], None]:  # noqa: ARG002 - it is refused
        _no_gate("policy", f"treadle attach --policy {text_of(spec)}", self._where)

    def _prepared_rules(self, loop: Loop, given: Any) -> Callable[[], None]:  # noqa: ARG002 - whatever they are
        _no_gate("rules", "treadle attach --rule …", self._where)

    def _prepared_slots(self, count: int | str) -> Callable[[], None]:  # noqa: ARG002 - whatever it is
        _no_gate("slots", "treadle attach", self._where)

    def _prepared_express(self, count: int) -> Callable[[], None]:  # noqa: ARG002 - as above
        _no_gate("express", "treadle attach", self._where)


def batches(nodes: Sequence[Node], options: Options) -> Batches | None:
    """Check the nodes of a run in layout `realtime`, and return the recorder of its batches; None for other layouts."""
    if options.layout != "realtime":
        return None
    check(nodes, options)
    return Batches()


def check(nodes: Sequence[Node], options: Options) -> None:
    """Refuse, before Spark starts, nodes that real-time mode can't run."""
    for node in nodes:
        if node.kind is Kind.FEED and options.channels == "embedded":
            raise ConfigError(
                "an embedded feed can't be read in real time",
                where=node.where,
                remedy="use channels='kafka', or p.topic; " + plans.ELSEWHERE,
            )
        if node.kind is Kind.SINK:
            raise ConfigError(
                "a sink function gets its rows only when a batch ends",
                where=node.where,
                remedy="use p.write(…, format='kafka'), " + plans.ELSEWHERE,
            )
        if getattr(node.accuracy, "column", None) is not None:
            raise ConfigError(
                "its accuracy is about a column, whose values are reported only when a batch ends",
                where=node.where,
                remedy="use treadle.relative_error() for the number of rows, " + plans.ELSEWHERE,
            )
        if node.kind is Kind.WRITER and node.format not in FORMATS:
            raise ConfigError(
                f"format '{node.format}' can't be written in real time",
                where=node.where,
                remedy=f"use one of {', '.join(FORMATS)}, " + plans.ELSEWHERE,
            )


def master(nodes: Mapping[str, Node]) -> str:
    """A local master with more task slots than the stages of all queries can need: unused slots cost nothing."""
    operators = sum(len(query.operators) for query in graph.fused_queries(nodes))
    return f"local[{max(4 * usable_cores(), 8 * operators)}]"


def plan(
    node: Node,
    nodes: Mapping[str, Node],
    spark: SparkSession,
    channels: build.Sources,
    key: str,
    shed: build.Shed = build.everything,
) -> build.Plan:
    """Plan the query of a sink, with each operator in a stage; errors name an operator that real-time mode can't run.

    A source is read in the stage of the operator that reads it; a sink is written in the stage of the last operator.
    An operator with several inputs and all operators upstream of it share a stage: a task that reads one of several
    inputs can't read from another stage.
    """
    made: dict[str, DataFrame] = {}
    states: dict[str, int] = {}
    read: list[Topic] = []
    whole = _before_unions(nodes)

    def rows_of(name: str) -> DataFrame:
        if name not in made:
            made[name] = _rows(nodes[name])
            found = plans.read(made[name])
            plans.check(nodes[name], made[name], found)
            states[name] = found.states
        return made[name]

    def _rows(upstream: Node) -> DataFrame:
        if upstream.kind is Kind.SOURCE:
            return shed(source_metrics.watched(upstream, build.from_source(upstream, spark)), upstream.name, node.name)
        if upstream.kind is not Kind.OPERATOR:
            channel = channels[upstream.name]
            assert isinstance(channel, Topic)
            read.append(channel)
            return shed(channel.read(spark, key, node.name), upstream.name, node.name)
        inputs = {name: rows_of(name) for name in upstream.inputs}
        if upstream.name in whole:
            return _operator(upstream, inputs, cut=False)
        [first] = upstream.inputs
        rows = _operator(upstream, inputs, cut=nodes[first].kind is Kind.OPERATOR)
        if nodes[first].kind is not Kind.OPERATOR and plans.read(rows).states > states[first]:
            # Spark would add this boundary itself, in the middle of the operator.
            return _operator(upstream, inputs, cut=True)
        return rows

    rows = rows_of(node.inputs[0])
    foreign = tuple(name for name in made if nodes[name].kind is Kind.SOURCE)
    return build.Plan(node, tuple(read), rows, foreign)


def check_slots(planned: Collection[build.Plan], spark: SparkSession) -> None:
    """Raise a ConfigError if Spark has too few task slots: all stages run at once, and each task needs a slot."""
    wanted = sum(plans.tasks(plans.read(each.rows), _partitions(each)) for each in planned)
    context: Any = spark.sparkContext._jsc.sc()
    there = int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))
    local = str(spark.sparkContext.master).startswith("local")
    if there < wanted and (local or there):  # the executors of a cluster may still be starting
        remedy = f"treadle.session(master='local[{wanted}]') or more" if local else "add executors"
        raise ConfigError(
            f"its stages need {wanted} task slots at once, but Spark has {there}",
            where="layout realtime",
            remedy=remedy,
        )


def started(plan: build.Plan, key: str, checkpoint: Path, batch: float) -> StreamingQuery:
    """Start the query of a sink, with batches of `batch` seconds."""
    node = plan.node
    with _set(plan.rows.sparkSession, _settings(node, batch)):
        timed = build.writer(plan).trigger(realTime=f"{_milliseconds(batch)} milliseconds")
        return queries.started(timed, node, key, checkpoint, modes=("update",))


class Batches:
    """Records the batches of all queries in their hops' counters. Spark reports a batch only at its end."""

    def __init__(self) -> None:
        self.operators: dict[str, dict[str, int]] = {}
        """By sink and operator: the rows that the operator has read so far in the sink's query."""
        self._noted: dict[str, int] = {}

    def note(self, hop: Hop) -> bool:
        """Record the batches that ended since the last call; return whether there are any."""
        query = hop.query
        if query is None or not query.isActive:
            return False
        ended = self._ended(hop.name, query)
        for report in ended:
            self._count(hop, report)
        if ended or query.status["isTriggerActive"]:
            rows = any(backlog.rows for backlog in hop.backlogs())
            busy = rows if hop.inputs else any(report.numInputRows for report in ended)
            hop.state = State.RUNNING if busy else State.IDLE
        return bool(ended)

    def stop(self, hops: Collection[Hop], limit: float, stops: Stops) -> None:
        """Stop each query at the end of a batch, or when no rows wait for it, until `limit` (monotonic).

        The rows of an unfinished batch would be written again after the next start.
        """
        going = list(hops)
        while going and time.monotonic() < limit:
            for hop in going[:]:
                if hop.query is None or not hop.query.isActive:
                    going.remove(hop)
                elif self.note(hop) or (hop.inputs and not any(backlog.rows for backlog in hop.backlogs())):
                    stops.begin(hop.name, hop.query.stop)
                    going.remove(hop)
            time.sleep(LOOK)

    def _ended(self, name: str, query: StreamingQuery) -> list[StreamingQueryProgress]:
        before, last = self._noted.get(name, -1), query._jsq.lastProgress()
        if last is None or int(last.batchId()) <= before:
            return []
        self._noted[name] = int(last.batchId())
        return [report for report in query.recentProgress if before < report.batchId <= self._noted[name]]

    def _count(self, hop: Hop, report: StreamingQueryProgress) -> None:
        out = int(report.sink.numOutputRows)
        hop.count(int(report.numInputRows), out if out >= 0 else math.nan)
        hop.busy += report.batchDuration / 1000
        hop.batches += 1
        hop.failures, hop.well = 0, time.monotonic()
        seen = self.operators.setdefault(hop.name, {})
        for name, row in report.observedMetrics.items():
            if found := _READS.fullmatch(name):
                seen[found[1]] = seen.get(found[1], 0) + int(row["rows"])
        ends = [offset for offset in Progress.parse(report.json).ends.values() if isinstance(offset, dict)]
        for channel in hop.inputs:
            assert isinstance(channel, Topic)
            note_bad_rows(hop, channel, encoded.reported(report.observedMetrics, channel.name))
            for offset in ends:
                if channel.topic in offset:
                    channel.positions[hop.name] = {int(part): int(at) for part, at in offset[channel.topic].items()}


def _before_unions(nodes: Mapping[str, Node]) -> set[str]:
    """The names of operators with several inputs, and of all nodes upstream of them."""
    return graph.needed_by([node.name for node in nodes.values() if len(node.inputs) > 1], nodes)


def _operator(node: Node, inputs: Mapping[str, DataFrame], *, cut: bool) -> DataFrame:
    """Return the rows of an operator, with its input rows counted. With `cut` the operator begins a new stage.

    A stage begins with a repartition by a constant key. Such a key costs nothing, and Spark knows that all rows are in
    one partition. The counter also stops Spark from moving filters to the stage before, and puts the operator's name
    into the plan.
    """
    from pyspark.sql import functions as f

    joined = []
    for name, rows in inputs.items():
        begun = rows.repartition(1, f.lit(node.name)) if cut else rows
        joined.append(begun.observe(f"treadle {node.name} reads {name}", f.count(f.lit(1)).alias("rows")))
    return build.called(node, *joined)


def _partitions(plan: build.Plan) -> dict[str, int]:
    topics = [channel for channel in plan.inputs if isinstance(channel, Topic)]
    return {channel.topic: len(channel.cluster.partitions(channel.topic)) for channel in topics}


def _settings(node: Node, batch: float) -> dict[str, str]:
    """The settings that the session must have when a query starts. The query keeps them for as long as it runs."""
    found = {
        # State has as many partitions, each with a thread of its own.
        "spark.sql.shuffle.partitions": "1",
        f"{_MODE}.minBatchDuration": f"{_milliseconds(batch)}ms",
    }
    if node.format == "noop":  # not on Spark's list; the operators of the query are checked already
        found[f"{_MODE}.allowlistCheck"] = "false"
    return found


@contextmanager
def _set(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Context in which a session has these settings; afterwards the previous ones are restored."""
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, found in before.items():
            if found is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, found)


def _milliseconds(batch: float) -> int:
    return round(1000 * batch)


def _no_gate(what: str, remedy: str, where: str) -> NoReturn:
    raise ConfigError(f"there is no gate in the realtime layout, so no {what}", where=where, remedy=remedy)
