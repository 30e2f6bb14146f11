"""Finds out from Spark's analysed plan whether real-time mode can run a query, and how many tasks the query has.

A plan is read from the JVM once, and nothing is started. Static parts of a query, such as a joined table, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from treadle.errors import ConfigError
from treadle.pipelines.nodes.node import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ELSEWHERE = "or use layout='hops' or 'fused'"
_PYTHON = re.compile("Pandas|Arrow|Py[A-Z]|Python")
_LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_SOURCE = "StreamingRelationV2"
_STATEFUL = frozenset({"Aggregate", "Deduplicate", "Distinct"})
_BOUNDARIES = frozenset({"Repartition", "RepartitionByExpression"})
# The logical operators behind Spark's own list of physical operators (RealTimeModeAllowlist).
_TAKEN = (_STATEFUL | _BOUNDARIES) | {
    *("Project", "Filter", "TypedFilter", "Generate", "Expand", "Union", "Join", "EventTimeWatermark"),
    *("SubqueryAlias", "View", "ResolvedHint", "CollectMetrics", _SOURCE),
    *("MapElements", "MapPartitions", "AppendColumns", "SerializeFromObject", "DeserializeToObject"),
}


@dataclass(frozen=True)
class Part:
    """A node of a plan, with the streaming nodes below it."""

    name: str
    below: tuple[Part, ...]
    source: Source | None = None
    partitions: int = 0
    """The number of partitions after a stage boundary (a repartition); 0 for other nodes."""

    def every(self) -> Iterator[Part]:
        """Yield this node and all nodes below it."""
        yield self
        for part in self.below:
            yield from part.every()

    @property
    def states(self) -> int:
        """How many operators keep state, among this node and all nodes below it."""
        return sum(part.name in _STATEFUL for part in self.every())

    @property
    def cut(self) -> bool:
        """Whether this node or one below it is a stage boundary (a repartition)."""
        return any(part.name in _BOUNDARIES for part in self.every())


class Source(NamedTuple):
    """A source of a query: its kind, the identity of its table, its topics, and its options that limit a batch."""

    kind: str
    identity: int
    topics: tuple[str, ...]
    limits: tuple[str, ...]


def read(rows: DataFrame) -> Part:
    """The analysed plan of a streaming DataFrame."""
    return _read(rows._jdf.queryExecution().analyzed())


def check(node: Node, rows: DataFrame, plan: Part) -> None:
    """Raise a ConfigError if real-time mode can't run the plan. The error names `node`, which has just made `rows`."""
    if _runs_python(rows, plan):
        problem = "runs Python, which passes rows on only when a batch ends"
        _refuse(node, problem, f"use Spark's own expressions, {ELSEWHERE}")
    for part in plan.every():
        if part.source is not None:
            _check_source(node, part.source)
        elif part.name not in _TAKEN:
            _refuse(node, f"uses {part.name}, which real-time mode does not support", f"replace it, {ELSEWHERE}")
        elif part.name == "Join" and len(part.below) > 1:
            _refuse(
                node, "joins two streams, which real-time mode does not support", f"join a static table, {ELSEWHERE}"
            )
        elif part.name == "Union" and any(each.states or each.cut for each in part.below):
            what = "a stateful operator" if any(each.states for each in part.below) else "repartition"
            _refuse(
                node,
                f"has a union after {what}, which real-time mode does not support",
                f"unite them first, {ELSEWHERE}",
            )
    sources = [part.source.identity for part in plan.every() if part.source is not None]
    if len(set(sources)) < len(sources):
        problem = "reads one source in two ways, which real-time mode does not support"
        _refuse(node, problem, f"define the source once for each, under two names, {ELSEWHERE}")
    if plan.states > 1:
        problem = "has a stateful operator after another one, and real-time mode supports one per query"
        _refuse(node, problem, f"put a Kafka topic between the two (p.write, p.topic), {ELSEWHERE}")


def tasks(plan: Part, partitions: Mapping[str, int]) -> int:
    """The number of tasks of all stages together. `partitions` is by topic; a missing topic counts as one partition."""
    found = _count(plan, partitions)
    return found.done + found.open


class _Tasks(NamedTuple):
    """Number of tasks in the part of a plan that ends at some node, by stage.

    `done` counts the stages that end below the node, `open` the node's own stage. `single`: Spark knows that the node's
    own stage has one partition.
    """

    done: int
    open: int
    single: bool


def _count(plan: Part, partitions: Mapping[str, int]) -> _Tasks:
    if plan.source is not None:
        return _Tasks(0, sum(partitions.get(topic, 1) for topic in plan.source.topics), False)
    below = [_count(part, partitions) for part in plan.below]
    done, open_ = sum(each.done for each in below), sum(each.open for each in below)
    single = len(below) == 1 and below[0].single
    if plan.name in _BOUNDARIES:
        return _Tasks(done + open_, plan.partitions, plan.partitions == 1)
    if plan.name in _STATEFUL and not single:  # Spark adds an exchange by key itself
        return _Tasks(done + open_, 1, True)
    return _Tasks(done, open_, single)


def _read(plan: Any) -> Part:
    name, children = str(plan.nodeName()), plan.children()
    every = [children.apply(number) for number in range(children.size())]
    streams = every if len(every) == 1 else [child for child in every if child.isStreaming()]
    below = tuple(_read(child) for child in streams)
    if name == _SOURCE:
        return Part(name, below, source=_source(plan))
    if name == "Repartition":
        return Part(name, below, partitions=int(plan.numPartitions())) if plan.shuffle() else Part("Coalesce", below)
    if name == "RepartitionByExpression":
        given = plan.optNumPartitions()
        return Part(name, below, partitions=int(given.get()) if given.isDefined() else 1)
    if name == "Generate":
        return Part(str(plan.generator().getClass().getSimpleName()) if _in_python(plan) else name, below)
    return Part(name, below)


def _source(relation: Any) -> Source:
    options = relation.extraOptions()
    topics = tuple(topic.strip() for topic in str(options.get("subscribe")).split(","))
    limits = tuple(option for option in _LIMITS if options.containsKey(option))
    return Source(str(relation.sourceName()), int(relation.table().hashCode()), topics, limits)


def _in_python(generate: Any) -> bool:
    return _PYTHON.search(str(generate.generator().getClass().getSimpleName())) is not None


def _runs_python(rows: DataFrame, plan: Part) -> bool:
    """Whether a plan runs Python, in an expression (functions of rows) or in a plan node (functions of batches)."""
    jvm: Any = rows.sparkSession._jvm
    pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    if rows._jdf.queryExecution().analyzed().containsPattern(pattern):
        return True
    return any(_PYTHON.search(part.name) for part in plan.every())


def _check_source(node: Node, source: Source) -> None:
    if source.kind != "kafka":
        _refuse(node, f"reads '{source.kind}', but real-time mode reads Kafka only", f"use p.topic, {ELSEWHERE}")
    for option in source.limits:
        _refuse(node, f"has the option {option}, but in real time rows are read as they arrive", "leave it out")


def _refuse(node: Node, problem: str, remedy: str) -> NoReturn:
    raise ConfigError(problem, where=node.where, remedy=remedy)
