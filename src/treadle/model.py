"""What is scheduled: queries as graphs of logical operators, their physical instances, and the threads that run them.

Frozen values, no I/O. A `Topology` is one version of all of these; its arrays (edges, levels, owners) are computed
once, for numpy operations over rows in metrics and policies. Lachesis section 2: logical and physical DAG.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from treadle.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Role(StrEnum):
    """What a thread does: run an operator's logic (main) or move its data (helper). The terms are Lachesis-RT's."""

    MAIN = "main"
    HELPER = "helper"


@dataclass(frozen=True, slots=True)
class ThreadRef:
    """A kernel thread. `start_time` distinguishes it from a later thread to which the kernel gives the same id."""

    tid: int
    pid: int = 0
    start_time: int = 0
    role: Role = Role.MAIN
    name: str = ""

    def __hash__(self) -> int:
        return self.tid  # cheap, as threads are dict keys all over a round; two threads with one id are rare


@dataclass(frozen=True, slots=True)
class Operator:
    """A logical operator. Without upstream operators it is a source, without downstream operators a sink.

    `priority` and `latency_goal` override those of its query; None means that the query's value holds. A goal of inf
    means no goal, even if the query has one.
    """

    name: str
    upstream: tuple[str, ...] = ()
    priority: float | None = None
    latency_goal: float | None = None


@dataclass(frozen=True)
class Query:
    """A directed acyclic graph of operators, with the priority and the latency goal that its owner wants."""

    name: str
    operators: tuple[Operator, ...]
    priority: float = 0.0
    latency_goal: float | None = None

    def __post_init__(self) -> None:
        _check_graph(self)

    @cached_property
    def downstream(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {op.name: [] for op in self.operators}
        for op in self.operators:
            for up in op.upstream:
                found[up].append(op.name)
        return {name: tuple(downs) for name, downs in found.items()}


@dataclass(frozen=True, slots=True)
class Instance:
    """What an engine runs as one unit: one of the parallel copies of an operator, or of several fused ones."""

    query: str
    operators: tuple[str, ...]
    index: int = 0
    engine: str = ""
    threads: tuple[ThreadRef, ...] = ()

    @property
    def id(self) -> str:
        engine = f"{self.engine}:" if self.engine else ""
        return f"{engine}{self.query}.{'+'.join(self.operators)}[{self.index}]"


@dataclass(frozen=True)
class Level:
    """The instances (`rows`) at one distance from the sinks, and the edges that leave them, sorted by sender.

    `edge_to` has rows of the topology, `share` the share of the sender's tuples that takes the edge.
    """

    rows: Ints
    edge_from: Ints  # position within `rows`
    edge_to: Ints
    share: Floats


@dataclass(frozen=True)
class Topology:
    """One version of all queries and instances that are scheduled together. A row is an instance."""

    queries: tuple[Query, ...]
    instances: tuple[Instance, ...]
    version: int = 0

    def __post_init__(self) -> None:
        _check_topology(self)

    @classmethod
    def of(
        cls,
        queries: Iterable[Query],
        *,
        parallelism: Mapping[tuple[str, str], int] | None = None,
        fused: Sequence[tuple[str, tuple[str, ...]]] = (),
        engine: str = "",
        version: int = 0,
    ) -> Topology:
        """Build a topology: `parallelism[query, operator]` copies (default 1), each `fused` chain as one instance."""
        queries = tuple(queries)
        copies = parallelism or {}
        chain_of = {(query, name): chain for query, chain in fused for name in chain}
        instances: list[Instance] = []
        for query in queries:
            for op in query.operators:
                chain = chain_of.get((query.name, op.name), (op.name,))
                if chain[0] != op.name:
                    continue
                count = copies.get((query.name, op.name), 1)
                instances += [Instance(query.name, chain, i, engine) for i in range(count)]
        return cls(queries, tuple(instances), version)

    @classmethod
    def merge(cls, parts: Sequence[Topology]) -> Topology:
        """Merge the topologies of several engines, rows in the order of `parts`, so that one decision spans them all.

        If two engines have queries of the same name, each gets its engine's name in front.
        """
        if len(parts) == 1:
            return parts[0]
        seen: dict[str, int] = {}
        for part in parts:
            for query in part.queries:
                seen[query.name] = seen.get(query.name, 0) + 1
        queries: list[Query] = []
        instances: list[Instance] = []
        for number, part in enumerate(parts):
            label = next((i.engine for i in part.instances if i.engine), str(number))
            new = {q.name: f"{label}/{q.name}" if seen[q.name] > 1 else q.name for q in part.queries}
            queries += [replace(q, name=new[q.name]) for q in part.queries]
            instances += [replace(i, query=new[i.query]) for i in part.instances]
        return cls(tuple(queries), tuple(instances), sum(part.version for part in parts))

    def __len__(self) -> int:
        return len(self.instances)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple(instance.id for instance in self.instances)

    @cached_property
    def row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    @cached_property
    def query_of(self) -> Ints:
        """Row -> index into `queries`."""
        index = {query.name: i for i, query in enumerate(self.queries)}
        return np.array([index[i.query] for i in self.instances], dtype=np.int64)

    @cached_property
    def priority(self) -> Floats:
        """Row -> user priority: the highest among its operators, where an operator without one has its query's."""
        of_query = np.array([q.priority for q in self.queries], dtype=np.float64)[self.query_of]
        own = {(q.name, op.name): op.priority for q in self.queries for op in q.operators if op.priority is not None}
        return self._of_operators(of_query, own, np.maximum) if own else of_query

    @cached_property
    def latency_goal(self) -> Floats:
        """Row -> the smallest latency goal of its operators in seconds, or its query's; NaN where there is none."""
        goals = [np.inf if q.latency_goal is None else q.latency_goal for q in self.queries]
        found = np.array(goals, dtype=np.float64)[self.query_of]
        own = {
            (q.name, op.name): op.latency_goal
            for q in self.queries
            for op in q.operators
            if op.latency_goal is not None
        }
        if own:
            found = self._of_operators(found, own, np.minimum)
        return np.where(np.isinf(found), np.nan, found)

    def _of_operators(self, of_query: Floats, own: dict[tuple[str, str], float], which: np.ufunc) -> Floats:
        """Row -> `which` (maximum or minimum) of its operators' numbers: those in `own`, else those of the query."""
        width = np.array([len(i.operators) for i in self.instances], dtype=np.int64)
        each = [own.get((i.query, name), np.nan) for i in self.instances for name in i.operators]
        filled = np.where(np.isnan(each), np.repeat(of_query, width), each)
        found: Floats = which.reduceat(filled, np.cumsum(width) - width)
        return found

    @cached_property
    def edges(self) -> tuple[Ints, Ints, Floats]:
        """(from row, to row, share): the share of the tuples leaving `from` that reaches `to`.

        Every consumer of a stream gets the whole stream, so the shares of a branch add up to its number of consumers;
        the copies of one parallel consumer split the stream, so their shares add up to one.
        """
        rows: dict[tuple[str, str], list[int]] = {}
        for row, instance in enumerate(self.instances):
            for name in instance.operators:
                rows.setdefault((instance.query, name), []).append(row)
        out: list[tuple[int, int, float]] = []
        for query in self.queries:
            for op in query.operators:
                for up in op.upstream:
                    senders, receivers = rows[query.name, up], rows[query.name, op.name]
                    if senders == receivers:  # fused: a call, not a queue
                        continue
                    out += [(s, r, 1.0 / len(receivers)) for s in senders for r in receivers]
        table = np.array(out, dtype=np.float64).reshape(-1, 3)
        return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2].copy()

    @cached_property
    def is_source(self) -> Bools:
        return ~np.isin(np.arange(len(self)), self.edges[1])

    @cached_property
    def is_sink(self) -> Bools:
        return ~np.isin(np.arange(len(self)), self.edges[0])

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """Rows by their longest path to a sink, sinks first: all edges of a level lead to earlier levels."""
        start, end, share = self.edges
        depth = np.zeros(len(self), dtype=np.int64)
        while True:
            longer = depth.copy()
            np.maximum.at(longer, start, depth[end] + 1)
            if np.array_equal(longer, depth):
                break
            if longer.max() >= len(self):  # an acyclic path visits each row once
                raise ConfigError(
                    f"instance '{self.ids[int(longer.argmax())]}' feeds itself through others",
                    remedy="fuse only operators that follow each other",
                )
            depth = longer
        position = np.empty(len(self), dtype=np.int64)
        levels: list[Level] = []
        for distance in range(int(depth.max(initial=0)) + 1):
            rows = np.flatnonzero(depth == distance)
            position[rows] = np.arange(len(rows))
            mine = np.flatnonzero(depth[start] == distance)
            mine = mine[np.argsort(start[mine], kind="stable")]
            levels.append(Level(rows, position[start[mine]], end[mine], share[mine]))
        return tuple(levels)

    @cached_property
    def threads(self) -> tuple[ThreadRef, ...]:
        return tuple(thread for instance in self.instances for thread in instance.threads)

    @cached_property
    def thread_row(self) -> Ints:
        """Thread -> the row of its instance."""
        return np.repeat(np.arange(len(self)), [len(i.threads) for i in self.instances])

    @cached_property
    def thread_is_helper(self) -> Bools:
        return np.array([thread.role is Role.HELPER for thread in self.threads], dtype=np.bool_)


def _check_graph(query: Query) -> None:
    where = f"query '{query.name}'"
    if not query.name:
        raise ConfigError("a query has no name", remedy="give each query a name of its own")
    if not query.operators:
        raise ConfigError("has no source and no sink: it has no operators", where=where, remedy="add an operator")
    names = [op.name for op in query.operators]
    for name in names:
        if not name:
            raise ConfigError("an operator has no name", where=where, remedy="name it")
        if names.count(name) > 1:
            raise ConfigError(f"operator '{name}' is defined twice", where=where, remedy="rename one of them")
    known = set(names)
    for op in query.operators:
        for up in op.upstream:
            if up not in known:
                raise ConfigError(
                    f"operator '{op.name}' reads from '{up}', which does not exist",
                    where=where,
                    remedy=f"use one of {', '.join(sorted(known - {op.name})) or 'the operators of this query'}",
                )
        if len(set(op.upstream)) != len(op.upstream):
            raise ConfigError(f"operator '{op.name}' reads twice from one upstream", where=where, remedy="name it once")
    cycle = _find_cycle(query)
    if not cycle:
        return
    path = " -> ".join(cycle)
    if all(op.upstream for op in query.operators):
        raise ConfigError(
            f"has no source: every operator waits for another ({path})", where=where, remedy="cut an edge"
        )
    if known == {up for op in query.operators for up in op.upstream}:
        raise ConfigError(f"has no sink: every operator feeds another ({path})", where=where, remedy="cut an edge")
    raise ConfigError(f"has a cycle: {path}", where=where, remedy="cut an edge of it")


def _find_cycle(query: Query) -> list[str]:
    """Return a cycle in the direction of the data, its first operator repeated at the end; empty if there is none."""
    upstream = {op.name: op.upstream for op in query.operators}
    done: set[str] = set()
    for first in upstream:
        path: list[str] = []
        stack = [(first, iter(upstream[first]))]
        path.append(first)
        while stack:
            name, rest = stack[-1]
            following = next((up for up in rest if up not in done), None)
            if following is None:
                done.add(name)
                path.pop()
                stack.pop()
            elif following in path:
                cycle = [*path[path.index(following) :], following]
                return cycle[::-1]
            else:
                path.append(following)
                stack.append((following, iter(upstream[following])))
    return []


def _check_topology(topology: Topology) -> None:
    names = [query.name for query in topology.queries]
    known: dict[str, set[str]] = {q.name: {op.name for op in q.operators} for q in topology.queries}
    if len(known) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"query '{twice}' is defined twice", remedy="rename one of them")
    covered: dict[str, set[str]] = {name: set() for name in names}
    for instance in topology.instances:
        if instance.query not in known:
            raise ConfigError(f"instance '{instance.id}' is of an unknown query", remedy=f"known: {', '.join(names)}")
        for name in instance.operators:
            if name not in known[instance.query]:
                raise ConfigError(f"instance '{instance.id}' runs unknown operator '{name}'", remedy="check its name")
            covered[instance.query].add(name)
    if len({instance.id for instance in topology.instances}) != len(topology.instances):
        raise ConfigError("two instances have one id", remedy="number the copies of an operator")
    for name, operators in known.items():
        if missing := operators - covered[name]:
            raise ConfigError(
                f"operator '{min(missing)}' has no instance", where=f"query '{name}'", remedy="run at least one copy"
            )
