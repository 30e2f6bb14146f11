"""Functions on the graph of a pipeline's nodes: whether it is valid, the order of its nodes, the topology for policies.

Nodes are frozen, and the functions keep no state.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from types import MappingProxyType

from treadle.errors import ConfigError
from treadle.model import Operator, Query, Topology
from treadle.pipelines.nodes.node import Kind, Node
from treadle.plugins import suggestion

LAYOUTS = ("hops", "fused", "realtime")

Nodes = Mapping[str, Node]


def check(pipeline: str, nodes: Nodes) -> None:
    """Raise a ConfigError for the first mistake in the graph."""
    where = f"pipeline '{pipeline}'"
    if not nodes:
        raise ConfigError("is empty", where=where, remedy="define a source and a sink: @p.source, @p.sink")
    for node in nodes.values():
        _check_inputs(node, nodes)
    if cycle := find_cycle(nodes):
        raise ConfigError(
            f"reads what it makes itself: {' -> '.join(cycle)}", where=nodes[cycle[0]].where, remedy="cut one of these"
        )
    readers = downstream(nodes)
    for node in nodes.values():
        _check_key(node, nodes)
        if not node.kind.ends and not readers[node.name]:
            raise ConfigError(
                f"nothing reads '{node.name}'",
                where=node.where,
                remedy=f"add a sink or an operator with the parameter {node.name}, or remove it",
            )


def downstream(nodes: Nodes) -> dict[str, tuple[str, ...]]:
    """Node -> the nodes that read it, in the order of definition."""
    found: dict[str, list[str]] = {name: [] for name in nodes}
    for node in nodes.values():
        for name in node.inputs:
            found[name].append(node.name)
    return {name: tuple(readers) for name, readers in found.items()}


def in_order(nodes: Nodes) -> tuple[Node, ...]:
    """All nodes, each after the nodes that it reads; otherwise in the order of definition."""
    done: dict[str, Node] = {}
    for first in nodes:
        stack = [first]
        while stack:
            name = stack[-1]
            missing = [up for up in nodes[name].inputs if up not in done]
            if missing:
                stack.append(missing[0])
            else:
                done.setdefault(name, nodes[name])
                stack.pop()
    return tuple(done.values())


def needed_by(names: Iterable[str], nodes: Nodes) -> set[str]:
    """These nodes and all nodes that they read, directly or through others."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += nodes[name].inputs
    return found


def priority_of_node(nodes: Nodes) -> dict[str, float]:
    """Node -> the highest priority of the sinks that its rows can reach."""
    found: dict[str, float] = {}
    readers = downstream(nodes)
    for node in reversed(in_order(nodes)):
        found[node.name] = node.priority if node.kind.ends else max(found[name] for name in readers[node.name])
    return found


def goal_of_node(nodes: Nodes) -> dict[str, float]:
    """Node -> the smallest latency goal of the sinks that its rows can reach; inf where none has one."""
    found: dict[str, float] = {}
    readers = downstream(nodes)
    for node in reversed(in_order(nodes)):
        own = math.inf if node.latency_goal is None else node.latency_goal
        found[node.name] = own if node.kind.ends else min(found[name] for name in readers[node.name])
    return found


def parts(nodes: Nodes, *, through: bool) -> list[list[Node]]:
    """The connected parts of the graph; in each part a node comes after the nodes that it reads.

    Parts that share only a feed or topic run independently. They count as one only if `through` is true; otherwise
    feeds and topics are left out.
    """
    part_of = {name: name for name in nodes}

    def root(name: str) -> str:
        while part_of[name] != name:
            name = part_of[name]
        return name

    for node in nodes.values():
        for up in node.inputs:
            if through or nodes[up].kind.runs:
                part_of[root(node.name)] = root(up)
    found: dict[str, list[Node]] = {root(name): [] for name in nodes if through or nodes[name].kind.runs}
    for node in in_order(nodes):
        if root(node.name) in found:
            found[root(node.name)].append(node)
    return list(found.values())


def queries(nodes: Nodes, named: Mapping[str, str] = MappingProxyType({})) -> tuple[Query, ...]:
    """Return each connected part of the graph as a query, named after its sink of highest priority.

    An operator has the highest priority and the smallest latency goal of the sinks that its rows can reach. While a
    pipeline changes, `named` has the query of each node that runs already. A part keeps that name, and parts of one
    name stay one query: so instances keep their names, by which the gate knows them.
    """
    priority, goal = priority_of_node(nodes), goal_of_node(nodes)
    whole: dict[str, list[Node]] = {}
    new = []
    for part in parts(nodes, through=False):
        known = Counter(named[node.name] for node in part if node.name in named)
        if known:
            whole.setdefault(known.most_common(1)[0][0], []).extend(part)
        else:
            new.append(part)
    for part in new:
        # max() keeps the first of equals, and sinks are in the order of definition.
        first = max(_sinks(part, nodes), key=lambda sink: sink.priority).name
        names = chain([first], (f"{first}-{number}" for number in count(2)))
        whole[next(name for name in names if name not in whole)] = part
    found = []
    for name, part in whole.items():
        operators = tuple(Operator(n.name, _running(n, nodes), priority[n.name], goal[n.name]) for n in part)
        found.append(_query(name, _sinks(part, nodes), operators))
    return tuple(found)


def fused_queries(nodes: Nodes) -> tuple[Query, ...]:
    """Each sink as a query of its own, with all that it needs: an operator of two sinks runs in both queries."""
    found = []
    for sink in nodes.values():
        if sink.kind.ends:
            needed = needed_by([sink.name], nodes)
            on_the_way = [n for n in in_order(nodes) if n.name in needed and n.kind.runs]
            found.append(_query(sink.name, [sink], tuple(Operator(n.name, _running(n, nodes)) for n in on_the_way)))
    return tuple(found)


def topology(nodes: Nodes, layout: str, engine: str, named: Mapping[str, str] = MappingProxyType({})) -> Topology:
    """The topology for policies. In layout `hops` each operator is an instance, else each sink with all it needs.

    `named` is as for `queries`.
    """
    if layout == "hops":
        return Topology.of(queries(nodes, named), engine=engine)
    if layout in LAYOUTS:
        whole = fused_queries(nodes)
        together = [(query.name, tuple(op.name for op in query.operators)) for query in whole]
        return Topology.of(whole, fused=together, engine=engine)
    raise ConfigError(f"layout '{layout}' is unknown", remedy=f"use one of {', '.join(LAYOUTS)}")


def with_priorities(declared: Topology, nodes: Nodes, own: Mapping[str, float], version: int) -> Topology:
    """Return the topology of these nodes with other priorities, by sink and operator; instances keep their names.

    An operator without a number of its own has the highest priority of the sinks that its rows can reach.
    """
    changed = {name: replace(node, priority=own.get(name, node.priority)) for name, node in nodes.items()}
    priority = {**priority_of_node(changed), **own}

    def query(old: Query) -> Query:
        operators = tuple(
            op if op.priority is None and op.name not in own else replace(op, priority=priority[op.name])
            for op in old.operators
        )
        sinks = [priority[op.name] for op in old.operators if nodes[op.name].kind.ends]
        return replace(old, operators=operators, priority=max(sinks))

    return Topology(tuple(map(query, declared.queries)), declared.instances, version)


def fingerprint(pipeline: str, nodes: Nodes) -> str:
    """The graph as text, a line for each node: equal for equal names, kinds and inputs, whatever the code is."""
    lines = sorted(" ".join([node.name, node.kind, *node.inputs]) for node in nodes.values())
    return "\n".join([f"pipeline {pipeline}", *lines]) + "\n"


def find_cycle(nodes: Nodes) -> list[str]:
    """A cycle in the direction of the data, its first node repeated at the end; empty if none."""
    done: set[str] = set()
    for first in nodes:
        path: list[str] = []
        stack = [(first, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                done.add(path.pop())
            elif name in path:
                return [*path[path.index(name) :], name][::-1]
            elif name not in done:
                path.append(name)
                stack += [(name, True), *((up, False) for up in nodes[name].inputs)]
    return []


def _check_inputs(node: Node, nodes: Nodes) -> None:
    for name in node.inputs:
        if name not in nodes:
            raise ConfigError(
                f"reads '{name}', which does not exist", where=node.where, remedy=_meant(name, node, nodes)
            )
        if nodes[name].kind.ends:
            raise ConfigError(
                f"reads '{name}', but a sink has no output", where=node.where, remedy=_meant("", node, nodes)
            )
        if node.inputs.count(name) > 1:
            raise ConfigError(
                f"reads '{name}' twice", where=node.where, remedy="read it once and use its DataFrame twice"
            )
    if node.kind is Kind.SINK and node.takes_batch_id and node.function is not None:
        second = list(inspect.signature(node.function).parameters)[1]
        if second in nodes:
            raise ConfigError(
                f"takes '{second}' as second parameter, which is the batch id",
                where=node.where,
                remedy="a sink reads one input: join them in an operator, or name the second parameter batch_id",
            )


def _check_key(node: Node, nodes: Nodes) -> None:
    """Refuse a node that sheds by the same key as a node upstream.

    The keys that the first one kept would also be kept by the second one, so their weight would be too high.
    """
    if node.shed is None or not node.shed.key:
        return
    for name in sorted(needed_by(node.inputs, nodes)):
        before = nodes[name].shed
        if before is not None and before.key == node.shed.key:
            raise ConfigError(
                f"sheds by the key {', '.join(node.shed.key)}, by which '{name}' sheds already",
                where=node.where,
                remedy="shed by that key in one of them",
            )


def _meant(name: str, node: Node, nodes: Nodes) -> str:
    if name == "spark" and node.inputs != ("spark",):
        return "a DataFrame has its session as df.sparkSession; leave the parameter out"
    readable = [n.name for n in nodes.values() if not n.kind.ends and n.name != node.name]
    return suggestion(name, readable, "define it with @p.source, p.feed or @p.operator")


def _running(node: Node, nodes: Nodes) -> tuple[str, ...]:
    return tuple(up for up in node.inputs if nodes[up].kind.runs)


def _sinks(part: Sequence[Node], nodes: Nodes) -> list[Node]:
    """The sinks of a part, in the order of definition."""
    mine = {node.name for node in part}
    return [node for node in nodes.values() if node.name in mine and node.kind.ends]


def _query(name: str, sinks: Sequence[Node], operators: tuple[Operator, ...]) -> Query:
    goals = [sink.latency_goal for sink in sinks if sink.latency_goal is not None]
    return Query(name, operators, max(sink.priority for sink in sinks), min(goals, default=None))
