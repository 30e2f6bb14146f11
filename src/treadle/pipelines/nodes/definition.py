"""The definition of a pipeline: named functions of DataFrames, connected by the names of their parameters.

It needs no Spark and runs nothing: it can be imported, checked and drawn, and tests can call its functions with static
DataFrames. `api.pipeline` adds the methods that run it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from treadle.decide.quality import Measure
from treadle.durations import Duration
from treadle.enforce.shed import Choice
from treadle.errors import ConfigError
from treadle.model import Query, Topology
from treadle.pipelines.nodes import graph
from treadle.pipelines.nodes import node as checks
from treadle.pipelines.nodes.node import Function, Inputs, Kind, Node
from treadle.plugins import suggestion

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OnFailure = Literal["stop", "continue", "retry"]
F = TypeVar("F", bound=Callable[..., Any])


class Definition:
    """The nodes of a pipeline, and the graph that they form."""

    def __init__(self, name: str) -> None:
        self.name = checks.check_name(name, f"pipeline ({checks.place_of_definition()})")
        self._nodes: dict[str, Node] = {}

    @classmethod
    def of(cls, name: str, nodes: Mapping[str, Node]) -> Definition:
        """Make a definition of nodes that exist already."""
        made = Definition(name)
        made._nodes = dict(nodes)
        return made

    def restricted(self, sinks: Collection[str]) -> Definition:
        """Some sinks and all nodes that they need, as a definition that later changes of this one leave alone."""
        for name in sinks:
            if not self.node(name).kind.ends:
                raise ConfigError("is not a sink", where=self.node(name).where, remedy="name sinks")
        needed = graph.needed_by(sinks, self._nodes)
        return Definition.of(self.name, {name: node for name, node in self._nodes.items() if name in needed})

    def other_version(self, file: str) -> Definition:
        """Load another version of this pipeline from a file. A `Pipeline` can; this class knows no files."""
        raise ConfigError("can't be loaded from a file", where=file, remedy="define it as a treadle.Pipeline")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self._nodes)} nodes)"

    # Definition

    @overload
    def source(self, function: F, /) -> F: ...
    @overload
    def source(
        self, *, name: str | None = None, arrival: str | None = None, shed: Choice | None = None
    ) -> Callable[[F], F]: ...
    def source(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        arrival: str | None = None,
        shed: Choice | None = None,
    ) -> Any:
        """Define a source: a function (spark) -> streaming DataFrame.

        `arrival` names the column with the time at which a row arrived (default: when Spark read it); latency is
        measured from that time. `shed` chooses which rows are dropped first if rows must be dropped (`by_utility`,
        `by_key`; default: any).
        """

        def define(decorated: F) -> F:
            place, own, where = self._begin(decorated, name, Kind.SOURCE)
            if len(checks.parameters(decorated, where)) != 1:
                raise ConfigError(
                    "its function must take the session and nothing else", where=where, remedy=f"def {own}(spark): …"
                )
            chosen = checks.check_shed(shed, where)
            self._add(Node(own, Kind.SOURCE, function=decorated, arrival=arrival, shed=chosen, place=place))
            return decorated

        return define if function is None else define(function)

    def feed(self, name: str, *, schema: str | StructType, shed: Choice | None = None) -> None:
        """Define a source that Python code fills, in this process or another. It has no Spark query of its own."""
        place, where = self._begin_named(name, Kind.FEED)
        shape, chosen = checks.check_schema(schema, where, needed=True), checks.check_shed(shed, where)
        self._add(Node(name, Kind.FEED, schema=shape, shed=chosen, place=place))

    def topic(
        self,
        name: str,
        *,
        schema: str | StructType | None = None,
        topic: str | None = None,
        format: Literal["json", "raw"] = "json",  # noqa: A002 - Spark's own word for it
        options: Mapping[str, object] | None = None,
        shed: Choice | None = None,
    ) -> None:
        """Define a source that is a Kafka topic. `topic` is its name in Kafka (default: `name`).

        With format `json` each value is an object with the columns of `schema`; with `raw` rows have Kafka's columns:
        key, value, topic, partition, offset, timestamp. `options` are passed to Spark's Kafka source.
        """
        place, where = self._begin_named(name, Kind.TOPIC)
        if format not in ("json", "raw"):
            raise ConfigError(f"format '{format}' is unknown", where=where, remedy="use one of json, raw")
        if format == "raw" and schema is not None:
            raise ConfigError(
                "a raw topic has Kafka's own columns", where=where, remedy="leave schema out, or use format='json'"
            )
        shape = checks.check_schema(schema, where, needed=format == "json")
        called = checks.check_topic(name if topic is None else topic, where)
        settings, chosen = checks.check_options(options, where), checks.check_shed(shed, where)
        self._add(
            Node(name, Kind.TOPIC, schema=shape, topic=called, format=format, options=settings, shed=chosen,
                 place=place)
        )  # fmt: skip

    @overload
    def operator(self, function: F, /) -> F: ...
    @overload
    def operator(
        self,
        *,
        name: str | None = None,
        inputs: Inputs | None = None,
        stateful: bool | None = None,
        shed: Choice | None = None,
    ) -> Callable[[F], F]: ...
    def operator(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        inputs: Inputs | None = None,
        stateful: bool | None = None,
        shed: Choice | None = None,
    ) -> Any:
        """Define an operator: a function of one or several DataFrames that returns one.

        Each parameter without a default is an input: the node of the same name, or the node that `inputs` names for it.
        `stateful`: whether the operator keeps state between batches (default: detected in Spark's plan).
        """

        def define(decorated: F) -> F:
            place, own, where = self._begin(decorated, name, Kind.OPERATOR)
            self._add(
                Node(
                    own,
                    Kind.OPERATOR,
                    checks.inputs_of(decorated, inputs, where),
                    decorated,
                    stateful=stateful,
                    shed=checks.check_shed(shed, where),
                    place=place,
                )
            )
            return decorated

        return define if function is None else define(function)

    @overload
    def sink(self, function: F, /) -> F: ...
    @overload
    def sink(
        self,
        *,
        name: str | None = None,
        inputs: Inputs | None = None,
        priority: float = 0,
        latency_goal: Duration | None = None,
        min_accuracy: float | None = None,
        accuracy: Measure | None = None,
        on_failure: OnFailure | None = None,
    ) -> Callable[[F], F]: ...
    def sink(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        inputs: Inputs | None = None,
        priority: float = 0,
        latency_goal: Duration | None = None,
        min_accuracy: float | None = None,
        accuracy: Measure | None = None,
        on_failure: OnFailure | None = None,
    ) -> Any:
        """Define a sink: a function (DataFrame, batch id) -> None as foreachBatch takes it, with or without the id.

        A higher `priority` is more urgent. `latency_goal` ("500ms", "1s", seconds, a timedelta) is the highest age of a
        row when it leaves the sink. `min_accuracy` is the share of the rows, 0 to 1, that must be processed: the others
        may be dropped if the CPU is too slow, for sinks of low priority first. Without it no rows are dropped. With an
        `accuracy` function, as `treadle.relative_error("amount")`, it is the lowest value that the function may return.
        `on_failure` says what happens when the sink has failed for good: the pipeline stops, continues without it, or
        tries again for ever (default: what the run says).
        """

        def define(decorated: F) -> F:
            place, own, where = self._begin(decorated, name, Kind.SINK)
            read, takes_id = checks.sink_inputs(decorated, inputs, where)
            self._add(
                Node(
                    own,
                    Kind.SINK,
                    read,
                    decorated,
                    priority=checks.check_priority(priority, where),
                    latency_goal=checks.check_goal(latency_goal, where),
                    min_accuracy=checks.check_accuracy(min_accuracy, where),
                    accuracy=checks.check_measure(accuracy, min_accuracy, where),
                    on_failure=checks.check_on_failure(on_failure, where),
                    takes_batch_id=takes_id,
                    place=place,
                )
            )
            return decorated

        return define if function is None else define(function)

    def write(
        self,
        name: str,
        *,
        reads: str,
        format: str,  # noqa: A002 - Spark's own word for it
        options: Mapping[str, object] | None = None,
        priority: float = 0,
        latency_goal: Duration | None = None,
        min_accuracy: float | None = None,
        accuracy: Measure | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Define a sink that is one of Spark's own writers, as "kafka", "parquet" or "noop", with its options."""
        place, where = self._begin_named(name, Kind.WRITER)
        if not isinstance(format, str) or not format:
            raise ConfigError(f"format is {format!r}", where=where, remedy="name a writer: kafka, parquet, noop, …")
        self._add(
            Node(
                name,
                Kind.WRITER,
                (checks.check_input(reads, where),),
                format=format,
                options=checks.check_options(options, where),
                priority=checks.check_priority(priority, where),
                latency_goal=checks.check_goal(latency_goal, where),
                min_accuracy=checks.check_accuracy(min_accuracy, where),
                accuracy=checks.check_measure(accuracy, min_accuracy, where),
                on_failure=checks.check_on_failure(on_failure, where),
                place=place,
            )
        )

    # The graph

    def check(self) -> None:
        """Raise a ConfigError if the nodes don't make a graph that can run."""
        graph.check(self.name, self._nodes)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, each after the nodes that it reads."""
        self.check()
        return graph.in_order(self._nodes)

    @property
    def sinks(self) -> tuple[Node, ...]:
        """All sinks and writers, in the order of definition."""
        return tuple(node for node in self._nodes.values() if node.kind.ends)

    def node(self, name: str) -> Node:
        """Return the node of this name; raise a ConfigError if there is none."""
        if name not in self._nodes:
            raise ConfigError(
                f"has no node '{name}'",
                where=f"pipeline '{self.name}'",
                remedy=suggestion(name, self._nodes, "it is empty"),
            )
        return self._nodes[name]

    def upstream(self, name: str) -> tuple[Node, ...]:
        """The nodes that a node reads, in the order of its parameters."""
        self.check()
        return tuple(self._nodes[up] for up in self.node(name).inputs)

    def downstream(self, name: str) -> tuple[Node, ...]:
        """The nodes that read a node, in the order of definition."""
        self.check()
        return tuple(self._nodes[reader] for reader in graph.downstream(self._nodes)[self.node(name).name])

    def queries(self) -> tuple[Query, ...]:
        """The queries as policies see them: each connected part of the graph is one.

        A query has the name and the priority of its sink of highest priority, and the smallest latency goal of its
        sinks. Feeds and topics do not belong to it, because no Spark query runs for them.
        """
        self.check()
        return graph.queries(self._nodes)

    def topology(
        self, layout: str = "hops", engine: str = "spark", named: Mapping[str, str] = MappingProxyType({})
    ) -> Topology:
        """The topology for policies. In layout `hops` each operator is an instance, else each sink and all it needs.

        `named` has the names of the queries that nodes belong to already, for a pipeline that changes while it runs.
        """
        self.check()
        return graph.topology(self._nodes, layout, engine, named)

    def fingerprint(self) -> str:
        """The graph as text, equal for equal graphs. By it a run detects the checkpoints of another graph."""
        return graph.fingerprint(self.name, self._nodes)

    # Inside

    def _begin(self, function: Function, name: str | None, kind: Kind) -> tuple[str, str, str]:
        place = checks.place_of_definition()
        own = checks.name_of(function, name, kind, place)
        return place, own, checks.named(kind, own, place)

    def _begin_named(self, name: str, kind: Kind) -> tuple[str, str]:
        place = checks.place_of_definition()
        return place, checks.named(kind, checks.check_name(name, f"{kind} ({place})"), place)

    def _add(self, node: Node) -> None:
        if node.name in self._nodes:
            raise ConfigError(
                f"the name is already that of {self._nodes[node.name].where}",
                where=node.where,
                remedy="give one of them another: name='…'; in a notebook, create the Pipeline again in the same cell",
            )
        self._nodes[node.name] = node
