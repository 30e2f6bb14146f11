"""Test inputs for policies: random topologies that change, and snapshots with many kinds of values, each labelled.

Expected results are not part of it. All inputs are drawn from one generator, so that a failure can be reproduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treadle.model import Floats, Operator, Query, Role, ThreadRef, Topology
from treadle.values import Snapshot

TOTALS = ("total_queue", "queue_variance", "output_rate", "latency")


@dataclass(frozen=True)
class Case:
    """A snapshot, and its label in messages."""

    snapshot: Snapshot
    label: str
    bounded: bool
    """True if all priorities must be finite: no value is infinite, and none is zero except queues and ages."""


def cases(rng: np.random.Generator, needs: Sequence[str], wants: Sequence[str]) -> Iterator[Case]:
    """Snapshots in the order of time: each topology in every state, with the metrics in `wants` and without."""
    time = 0.0
    for topology, kind in _topologies(rng):
        for state, (of_queues, of_others) in _STATES.items():
            for names, extent in (((*needs, *wants), "all it wants"), (needs, "only what it needs")):
                if extent == "only what it needs" and not wants:
                    continue
                time += 1.0
                fills = {name: of_queues if name in _QUEUES else of_others for name in names}
                columns = {name: fill(rng, len(topology)) for name, fill in fills.items()}
                label = f"{kind} with {state} ({len(topology)} rows, {extent})"
                yield Case(_snapshot(topology, time, columns, rng), label, bounded=state not in _EXTREME)


def known(rng: np.random.Generator, names: Sequence[str]) -> Case:
    """Three queries with all metrics known, at a time after all `cases`."""
    topology = _topology(rng, 3, version=9)
    columns = {name: _positive(rng, len(topology)) for name in names}
    return Case(_snapshot(topology, 1e6, columns, rng), "three queries with everything known", bounded=True)


def copy_of(snapshot: Snapshot) -> Snapshot:
    """A copy of a snapshot with arrays of its own."""
    columns = {name: column.copy() for name, column in snapshot.columns.items()}
    return Snapshot(snapshot.topology, snapshot.time, columns, dict(snapshot.totals))


def with_row(snapshot: Snapshot, row: int, change: Callable[[Floats], float]) -> Snapshot:
    """A copy with another value for one instance in every column; `change` computes the value from the column."""
    changed = copy_of(snapshot)
    for column in changed.columns.values():
        column[row] = change(column)
    return changed


def _snapshot(topology: Topology, time: float, columns: dict[str, Floats], rng: np.random.Generator) -> Snapshot:
    return Snapshot(topology, time, columns, {name: float(rng.uniform(0.1, 10.0)) for name in TOTALS})


# ---------------------------------------------------------------- topologies


def _topologies(rng: np.random.Generator) -> Iterator[tuple[Topology, str]]:
    first = _topology(rng, 3)
    yield first, "three queries"
    yield _grown(first, rng), "one query more"
    yield replace(first, instances=first.instances[::-1], version=2), "the rows in another order"
    yield Topology.of([Query("only", (Operator("op"),), latency_goal=1.0)], version=3), "one row"
    yield Topology((), (), version=4), "no rows"
    yield _topology(rng, 2, version=5), "two other queries"


def _topology(rng: np.random.Generator, count: int, version: int = 0) -> Topology:
    queries = [_query(rng, f"q{number}") for number in range(count)]
    copies = {(q.name, op.name): int(rng.integers(1, 3)) for q in queries for op in q.operators}
    fused = [(q.name, chain) for q in queries if (chain := _chain(q, copies))]
    return _with_threads(Topology.of(queries, parallelism=copies, fused=fused, engine="world", version=version))


def _grown(topology: Topology, rng: np.random.Generator) -> Topology:
    more = Topology.of([_query(rng, "more")], engine="world")
    both = Topology(topology.queries + more.queries, topology.instances + more.instances, version=1)
    return _with_threads(both)


def _query(rng: np.random.Generator, name: str) -> Query:
    """A random query, with branches, joins and several sources."""
    operators = [Operator("op0")]
    for at in range(1, int(rng.integers(2, 6))):
        ups = rng.choice(at, size=min(at, int(rng.choice([0, 1, 1, 1, 2]))), replace=False)
        operators.append(Operator(f"op{at}", tuple(f"op{up}" for up in sorted(ups))))
    goal = float(rng.uniform(0.1, 5.0)) if rng.random() < 0.5 else None
    return Query(name, tuple(operators), float(rng.choice([0.0, 1.0, 5.0])), goal)


def _chain(query: Query, copies: dict[tuple[str, str], int]) -> tuple[str, ...]:
    """Two neighbouring operators that can be fused; empty if there are none."""
    for op in query.operators:
        if len(op.upstream) == 1 and query.downstream[op.upstream[0]] == (op.name,):
            chain = (op.upstream[0], op.name)
            if copies[query.name, chain[0]] == copies[query.name, chain[1]]:
                return chain
    return ()


def _with_threads(topology: Topology) -> Topology:
    """Give each instance a main thread, and every second instance a helper thread."""
    instances = []
    for row, instance in enumerate(topology.instances):
        threads = (ThreadRef(1000 + row, 1000, 1), ThreadRef(2000 + row, 1000, 1, Role.HELPER))
        instances.append(replace(instance, threads=threads[: 1 + row % 2]))
    return replace(topology, instances=tuple(instances))


# ---------------------------------------------------------------- columns

Fill = Callable[[np.random.Generator, int], Floats]


def _positive(rng: np.random.Generator, rows: int) -> Floats:
    return 10.0 ** rng.uniform(-3.0, 3.0, rows)


def _every_second_empty(rng: np.random.Generator, rows: int) -> Floats:
    return np.where(np.arange(rows) % 2, _positive(rng, rows), 0.0)


def _some_are(value: float) -> Fill:
    return lambda rng, rows: np.where(rng.random(rows) < 0.3, value, _positive(rng, rows))


def _all_are(value: float) -> Fill:
    return lambda _, rows: np.full(rows, value)


_STATES: dict[str, tuple[Fill, Fill]] = {
    "everything known": (_positive, _positive),
    "some queues empty": (_every_second_empty, _positive),
    "all queues empty": (_all_are(0.0), _positive),
    "all values equal": (_all_are(1.0), _all_are(1.0)),
    "some values NaN": (_some_are(np.nan), _some_are(np.nan)),
    "all values NaN": (_all_are(np.nan), _all_are(np.nan)),
    "some values infinite": (_some_are(np.inf), _some_are(np.inf)),
    "some values zero": (_some_are(0.0), _some_are(0.0)),
    "all values zero": (_all_are(0.0), _all_are(0.0)),
}
"""For each state the values of queues and ages, and of other metrics."""
_EXTREME = frozenset({"some values infinite", "some values zero", "all values zero"})
_QUEUES = frozenset({"queue", "output_queue", "external_queue", "head_age", "mean_age"})
