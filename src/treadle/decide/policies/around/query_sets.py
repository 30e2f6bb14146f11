"""Query sets: each set of queries has a policy of its own, which sees only the queries of its set (Lachesis, goal G3).

`QuerySets` is one policy made of the policies of all sets. A set of a higher priority goes before all others, as in
Multi-Class: where only an order can be enforced, as at a gate, a priority can't be a share. Where shares can be
enforced, callers use the decisions of the sets (`parts`) instead of the common order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from treadle.decide.policies.around.wrapper import Around
from treadle.decide.policies.shared.compose import metrics_of
from treadle.decide.policy import Policy
from treadle.model import Bools, Floats, Ints, Query, Topology
from treadle.values import Schedule, Snapshot, dense_rank

OTHERS = "others"
EARLY = 0.1
"""The share of its period by which a set may decide early, since rounds are not exactly on time."""


@dataclass(frozen=True, eq=False)
class QuerySet:
    """The queries that `matches` accepts and no set before it does.

    `label` is what people call the set; empty for the set of all queries without a rule.
    """

    label: str
    matches: Callable[[str], bool]
    policy: Policy
    priority: float


class Part(NamedTuple):
    """The decision for one set: `number` is the set's place in the list of sets, `rows` are its rows."""

    number: int
    rows: Ints
    schedule: Schedule


class Periodic(Around):
    """Keeps the decision of a policy for `period` seconds, unless queries or instances change.

    It decides once on one snapshot, also if it is asked again.
    """

    def __init__(self, inner: Policy, period: float = 0.0) -> None:
        super().__init__(inner)
        self.period = period
        self.steady = inner.steady and not period
        self._last: tuple[Snapshot, Schedule] | None = None

    def decide(self, snapshot: Snapshot) -> Schedule:
        if self._last is not None:
            last, schedule = self._last
            passed = snapshot.time - last.time
            early = self.period > 0.0 and -math.inf < passed < self.period * (1.0 - EARLY)
            if snapshot is last or (snapshot.topology is last.topology and early):
                return schedule
        schedule = self.inner.decide(snapshot)
        self._last = snapshot, schedule
        return schedule


class QuerySets(Policy):
    """Sets of queries by priority, and in each set the order of its own policy; the last set should match all queries.

    At a gate (`at_gate`) an operator belongs to the most urgent set of the sinks that it reaches, and what its policy
    does not know goes last in its set, once it was tried. Elsewhere sets are of whole queries, and what is unknown
    stays unknown. If a policy knows nothing of its set, all of the set is equally urgent.
    """

    name: ClassVar[str] = "rules"

    def __init__(self, sets: Sequence[QuerySet], *, at_gate: bool = False) -> None:
        self.sets = tuple(sets)
        self._at_gate = at_gate
        self._division = _Division(self.sets, by_sink=at_gate)
        self.needs, wants = metrics_of(each.policy for each in self.sets)
        self.wants = (*wants, "batches") if at_gate and "batches" not in (*wants, *self.needs) else wants
        self.steady = all(each.policy.steady for each in self.sets)

    def rest(self) -> None:
        for each in self.sets:
            each.policy.rest()

    def through(self, wrap: Callable[[Policy], Policy]) -> QuerySets:
        """Return the same sets with other policies: `wrap` gets the policy of each set."""
        made = QuerySets([replace(each, policy=wrap(each.policy)) for each in self.sets], at_gate=self._at_gate)
        made._division = self._division
        return made

    def parts(self, snapshot: Snapshot) -> list[Part]:
        """Let the policy of each set that has queries decide on its part of the snapshot."""
        return [
            Part(number, rows, self.sets[number].policy.decide(part))
            for number, rows, part in self._division.snapshots(snapshot)
        ]

    def decide(self, snapshot: Snapshot) -> Schedule:
        parts = self.parts(snapshot)
        priority = np.array([each.priority for each in self.sets])
        count = len(snapshot.topology)
        level, main, helper = np.zeros(count), np.full(count, np.nan), np.full(count, np.nan)
        for number, rows, schedule in parts:
            level[rows] = priority[number]
            main[rows], helper[rows] = places(schedule)
            if self._at_gate:
                main[rows] = np.where(np.isnan(main[rows]) & _tried(snapshot)[rows], -1.0, main[rows])
        vectors = np.column_stack([level, main])
        vectors[np.isnan(main)] = np.nan
        reason = self.reason(parts)
        if all(part.schedule.helper is None for part in parts):
            return Schedule(vectors, reason=reason)
        helpers = np.column_stack([level, helper])
        helpers[np.isnan(helper)] = np.nan
        ranks = dense_rank(np.vstack([vectors, helpers]))  # a helper has one number, so the mains get one too
        return Schedule(ranks[:count], helper=ranks[count:], reason=reason)

    def reason(self, parts: Sequence[Part]) -> str:
        """Return the reasons of all sets as one text."""
        return " | ".join(f"{self.sets[part.number].label or OTHERS}: {part.schedule.reason}" for part in parts)

    def labels(self, topology: Topology) -> Mapping[str, str]:
        """Return by instance the label of its set."""
        found = _set_of_row(self.sets, topology, by_sink=self._at_gate).tolist()
        return {name: self.sets[number].label for name, number in zip(topology.ids, found, strict=True) if number >= 0}

    def state(self) -> dict[str, Any]:
        return {str(number): each.policy.state() for number, each in enumerate(self.sets)}

    def load(self, state: dict[str, Any]) -> None:
        for number, each in enumerate(self.sets):
            each.policy.load(state[str(number)])


def places(schedule: Schedule) -> tuple[Floats, Floats]:
    """Return where main threads and helpers stand in a set, from 0 to 1 for the most urgent; NaN is unknown.

    In a set of equals, all have 1, and so they do in a set of which nothing is known.
    """
    main = schedule.scalar
    helper = main if schedule.helper is None else schedule.helper
    ranks = dense_rank(np.concatenate([main, helper])[:, None])
    highest = np.max(ranks, initial=0.0, where=~np.isnan(ranks))
    found = np.where(np.isnan(ranks), np.nan, ranks / highest if highest > 0.0 else 1.0)
    own, its = found[: len(main)], found[len(main) :]
    if np.isnan(own).all():
        own = np.ones(len(main))
    return own, own if schedule.helper is None else its


class _Division:
    """The parts of the last topology and of the last snapshot, by set. Sets without a row are left out."""

    def __init__(self, sets: Sequence[QuerySet], *, by_sink: bool) -> None:
        self._sets, self._by_sink = sets, by_sink
        self._of_topology: tuple[Topology, list[tuple[int, Ints, Topology]]] | None = None
        self._of_snapshot: tuple[Snapshot, list[tuple[int, Ints, Snapshot]]] | None = None

    def snapshots(self, snapshot: Snapshot) -> list[tuple[int, Ints, Snapshot]]:
        if self._of_snapshot is None or self._of_snapshot[0] is not snapshot:
            parts = self._topologies(snapshot.topology)
            self._of_snapshot = snapshot, [(number, rows, _part(snapshot, rows, own)) for number, rows, own in parts]
        return self._of_snapshot[1]

    def _topologies(self, topology: Topology) -> list[tuple[int, Ints, Topology]]:
        if self._of_topology is None or self._of_topology[0] is not topology:
            of_row = _set_of_row(self._sets, topology, by_sink=self._by_sink)
            found = [(number, np.flatnonzero(of_row == number)) for number in range(len(self._sets))]
            own = [(number, rows, _restricted(topology, rows)) for number, rows in found if len(rows)]
            self._of_topology = topology, own
        return self._of_topology[1]


def _set_of_row(sets: Sequence[QuerySet], topology: Topology, *, by_sink: bool) -> Ints:
    """Row -> number of its set; -1 if there is none."""

    def number_of(name: str) -> int:
        return next((number for number, each in enumerate(sets) if each.matches(name)), -1)

    if not by_sink:
        of_query = np.array([number_of(query.name) for query in topology.queries], dtype=np.int64)
        return of_query[topology.query_of] if len(topology) else np.zeros(0, dtype=np.int64)
    of_operator = {}
    for query in topology.queries:
        for operator, sinks in _sinks(query).items():
            numbers = sorted(number_of(sink) for sink in sinks)
            of_operator[query.name, operator] = max(numbers, key=lambda number: sets[number].priority)
    found = [
        max((of_operator[each.query, name] for name in each.operators), key=lambda number: sets[number].priority)
        for each in topology.instances
    ]
    return np.array(found, dtype=np.int64)


def _sinks(query: Query) -> dict[str, frozenset[str]]:
    """Operator -> the sinks that its rows reach; a sink reaches itself."""
    found: dict[str, frozenset[str]] = {}

    def of(name: str) -> frozenset[str]:
        stack = [name]
        while stack:
            top = stack[-1]
            missing = [down for down in query.downstream[top] if down not in found]
            if missing:
                stack += missing
            else:
                downs = query.downstream[top]
                found[top] = frozenset().union(*(found[down] for down in downs)) if downs else frozenset({top})
                stack.pop()
        return found[name]

    return {operator.name: of(operator.name) for operator in query.operators}


def _restricted(topology: Topology, rows: Ints) -> Topology:
    """Return the part of a topology with these rows and their operators; edges to other rows are left out."""
    if len(rows) == len(topology):
        return topology
    instances = tuple(topology.instances[row] for row in rows.tolist())
    of_query: dict[str, set[str]] = {}
    for each in instances:
        of_query.setdefault(each.query, set()).update(each.operators)
    queries = tuple(
        replace(
            query,
            operators=tuple(
                replace(each, upstream=tuple(up for up in each.upstream if up in of_query[query.name]))
                for each in query.operators
                if each.name in of_query[query.name]
            ),
        )
        for query in topology.queries
        if query.name in of_query
    )
    return Topology(queries, instances, topology.version)


def _part(snapshot: Snapshot, rows: Ints, topology: Topology) -> Snapshot:
    if topology is snapshot.topology:
        return snapshot
    columns = {name: column[rows] for name, column in snapshot.columns.items()}
    estimated = {name: mask[rows] for name, mask in snapshot.estimated.items()}
    return Snapshot(topology, snapshot.time, columns, snapshot.totals, estimated)


def _tried(snapshot: Snapshot) -> Bools:
    """Return which rows have had a batch, as far as that is known: the others get their first turn from the gate."""
    if "batches" not in snapshot:
        return np.ones(len(snapshot.topology), dtype=np.bool_)
    tried: Bools = ~(snapshot["batches"] == 0.0)
    return tried
