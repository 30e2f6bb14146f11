"""Small policies around others: what an enforcer asks of priorities beyond what the policy itself decides.

They know rows and priorities, and no knob. `Seen` keeps what was last decided, for those who look on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import numpy as np

from treadle.decide import registry
from treadle.decide.adaptive import Adaptive
from treadle.decide.grouping import group
from treadle.decide.logical import operator_sets
from treadle.decide.policy import Policy
from treadle.decide.transform import SCALES
from treadle.engines.spark.threads.layout import PLANS, of_driver
from treadle.engines.spark.threads.naming import ANSWERS, COMPILERS, STARTS
from treadle.errors import ConfigError
from treadle.model import Floats, Topology
from treadle.observe.plan import plannable
from treadle.values import Groups, Schedule, Snapshot, dense_rank

LEVELS = 30
"""Among the rows of one kind, where sources run last. More than the benchmarks need, fewer than nice has."""
SHOWN = ("queue", "external_queue", "tuples_out", "latency", "cost", "rate", "cpu", "wait")
"""Metrics that are shown to people, whatever the policy needs."""


class Around(Policy):
    """Decides as another policy does, and has its name, metrics and state."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.name = inner.name  # type: ignore[misc]
        self.needs, self.wants, self.steady = inner.needs, inner.wants, inner.steady

    def decide(self, snapshot: Snapshot) -> Schedule:
        return self.inner.decide(snapshot)

    def state(self) -> dict[str, Any]:
        return self.inner.state()

    def load(self, state: dict[str, Any]) -> None:
        self.inner.load(state)


class Seen(Around):
    """Keeps the last snapshot and what was decided on it, and asks for the metrics that people look at."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner)
        self.wants = tuple(dict.fromkeys((*inner.wants, *(name for name in SHOWN if name not in inner.needs))))
        self.last: tuple[Snapshot, Schedule] | None = None

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        self.last = (snapshot, schedule)
        return schedule


class AdaptiveUnderAttach(Around):
    """A learner, with what it can judge its candidates by where an application only is looked at (AMoS section 3.2).

    Rows that the application is done with in a second are its throughput, rows that wait in Kafka or are under way what
    waits in total (`engines.spark.flow`). How old they are is not known.
    """

    COLUMNS: ClassVar[Mapping[str, str]] = {
        "output_rate": "rate",
        "total_queue": "external_queue",
        "queue_variance": "queue",
    }
    """By objective a metric that is measured together with it."""

    def __init__(self, inner: Adaptive, offers: Collection[str]) -> None:
        """Refuse candidates and objectives for which not enough is measured."""
        super().__init__(inner)
        what = "running Spark applications"
        for label, policy in inner.policies.items():
            if missing := [metric for metric in policy.needs if not plannable(metric, offers)]:
                served = [each.name for each in registry.describe() if all(plannable(n, offers) for n in each.needs)]
                raise ConfigError(
                    f"candidate '{label}' needs {' and '.join(missing)}, which can't be had of {what}",
                    where=f"policy '{self.name}'",
                    remedy=f"use some of {', '.join(n for n in served if n not in (self.name, 'weighted'))}",
                )
        inner.check_objectives(self.COLUMNS, what)
        judged_by = [self.COLUMNS[objective.metric] for objective in inner.objectives]
        self.needs = tuple(dict.fromkeys((*inner.needs, *judged_by)))
        self.wants = tuple(metric for metric in inner.wants if metric not in self.needs)

    def decide(self, snapshot: Snapshot) -> Schedule:
        return self.inner.decide(replace(snapshot, totals={**dict.fromkeys(self.COLUMNS, np.nan), **snapshot.totals}))


class ByShare(Around):
    """Users' priorities as shares of the CPU: the ratio of two is that of their weights, up to `ratio` to 1.

    Wider ones are drawn together until they fit, with 1, which is the priority of what nobody names, where it is. In
    `strict` order only the order counts: the highest has `ratio` times the weight of the lowest, the others are between
    them in even steps. In both cases what is worth least keeps its part of the CPU.
    """

    def __init__(self, inner: Policy, ratio: float, *, strict: bool) -> None:
        super().__init__(inner)
        self._ratio, self._strict = ratio, strict

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        reason = f"{schedule.reason}, {'in strict order' if self._strict else 'as shares'}"
        priority = bounded(schedule.scalar, self._ratio, strict=self._strict)
        return replace(schedule, priority=priority, spacing="log", reason=reason)


def bounded(priority: Floats, ratio: float, *, strict: bool) -> Floats:
    """Priorities above 0, of which none is more than `ratio` times another; see `ByShare`. The unknown stay unknown."""
    room = math.log(ratio)
    if strict:
        rank = dense_rank(priority[:, None])
        return np.exp(room * rank / max(1.0, np.max(rank, initial=0.0, where=~np.isnan(rank))))
    positive = priority > 0
    if not positive.any():
        return np.where(np.isnan(priority), np.nan, 1.0)
    logs = np.log(priority, where=positive, out=np.full(len(priority), np.nan))
    top, bottom = float(np.nanmax(logs)), float(np.nanmin(logs))
    squeeze = min(1.0, room / (top - bottom)) if top > bottom else 1.0
    known = np.where(positive, logs * squeeze, top * squeeze - room)  # what is worth nothing has the least part
    return np.where(np.isnan(priority), np.nan, np.exp(known))


class WithinQuery(Around):
    """Priorities compared only within a query, each over the whole scale: for threads in groups of their queries."""

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        count = len(schedule.scalar)
        helper = schedule.scalar if schedule.helper is None else schedule.helper
        both = np.concatenate([schedule.scalar, helper])  # on one scale, as they are compared
        unit = np.full(2 * count, np.nan)
        for query in range(len(snapshot.topology.queries)):
            mine = np.tile(snapshot.topology.query_of == query, 2)
            unit[mine] = SCALES["unit"].apply(both[mine], schedule.spacing)
        return replace(
            schedule,
            priority=unit[:count],
            helper=None if schedule.helper is None else unit[count:],
            spacing="linear",
            reason=f"{schedule.reason}, per query",
        )


class _AroundAnswers(Around):
    """Knows the rows of the threads by which a JVM answers, found once for each topology."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner)
        self._found: tuple[Topology | None, list[int]] = (None, [])

    def answers(self, topology: Topology) -> list[int]:
        if self._found[0] is not topology:
            self._found = topology, _rows(topology, lambda name: name == ANSWERS)
        return self._found[1]


class AnswersFirst(_AroundAnswers):
    """The threads by which a JVM answers, and stops for garbage, are as urgent as the most urgent one.

    They have little to do, but all of the JVM waits for it, and so does whoever looks at its threads.
    """

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        scalar, rows = schedule.scalar, self.answers(snapshot.topology)
        if not rows or np.isnan(scalar).all():
            return schedule
        highest = np.nanmax(scalar if schedule.helper is None else np.append(scalar, schedule.helper))
        scalar = scalar.copy()
        scalar[rows] = highest
        return replace(schedule, priority=scalar)


class AnswersOrdinary(_AroundAnswers):
    """The threads by which a JVM answers are left as they are: for real-time priorities.

    They run code of all kinds and wait for locks by yielding. As real-time threads they yield to nobody, so one that
    waited for a lock of an ordinary stage kept that stage from ever giving it back: the whole application stood still.
    """

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        rows = self.answers(snapshot.topology)
        priority = schedule.priority.copy()
        priority[rows] = np.nan
        helper = None if schedule.helper is None else schedule.helper.copy()
        if helper is not None:
            helper[rows] = np.nan
        return replace(schedule, priority=priority, helper=helper)


class StartsFirst(Around):
    """What a batch needs to begin is as urgent as the most urgent one, and compilers are held back.

    Where a policy has something to say of the driver that holds, and compilers are left alone. Between two batches all
    stages wait for their planner, a single thread; that is when the JVM's compilers have most to do, and without this
    they take two fifths of a core.
    """

    HELD_BACK = 0.25
    """Where they stand between the least urgent and the most urgent: what takes in more rows still waits for them."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner)
        self._found: tuple[Topology | None, list[int], list[int]] = (None, [], [])

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule, topology = self.inner.decide(snapshot), snapshot.topology
        if self._found[0] is not topology:
            self._found = topology, _rows(topology, _starts), _rows(topology, lambda name: name == COMPILERS)
        _, starting, compiling = self._found
        if not starting and not compiling:
            return schedule
        scalar = schedule.scalar.copy()
        scalar[compiling] = np.nan
        known = scalar[np.isfinite(scalar)]
        if len(known) and np.isnan(scalar[starting]).all():
            least, most = known.min(), known.max()
            scalar[starting] = most
            if schedule.spacing == "log" and least > 0.0:
                scalar[compiling] = least * (most / least) ** self.HELD_BACK
            else:
                scalar[compiling] = least + self.HELD_BACK * (most - least)
        return replace(schedule, priority=scalar)


def _starts(operator: str) -> bool:
    return operator in STARTS or operator.startswith(PLANS)


def _rows(topology: Topology, are: Callable[[str], bool]) -> list[int]:
    """Those of the engine itself whose names are so."""
    rows = enumerate(topology.instances)
    return [row for row, each in rows if of_driver(each.query) and are(each.operators[0])]


class SourcesLast(Around):
    """Stages that read a source run after all others; among themselves, and the others too, as the policy says.

    A query of one stage only, as all are in micro-batches, takes its rows from the source and is done with them: it is
    none of these.

    A fetch from Kafka costs as much for one row as for many, so a source that waits until the rest is done fetches many
    at once. And a priority holds until the next reading of the counters, some tenths of a second: a source that goes
    first has filled the queues behind it by then, with rows that are younger than those that should be served.
    Under `by_class` that is so within each class of users' priorities only. Only the order counts, in even steps: by
    distances, one source that is much behind would leave the others nothing, and HR's ratios would leave the costliest
    query a share that the cheapest one needs.

    It is for knobs of threads. A query as a whole is as urgent as its most urgent stage, also if that is its source.
    """

    def __init__(self, inner: Policy, *, by_class: bool = False) -> None:
        super().__init__(inner)
        self._by_class = by_class

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule, topology = self.inner.decide(snapshot), snapshot.topology
        own = np.array([not of_driver(query.name) for query in topology.queries], dtype=np.bool_)[topology.query_of]
        known = own & ~np.isnan(schedule.scalar)
        sources = known & topology.is_source & ~topology.is_sink
        inside = known & ~sources
        if not sources.any() or not inside.any() or schedule.helper is not None:  # which is on the same scale
            return schedule
        reason = f"{schedule.reason}; sources last"
        classes = topology.priority if self._by_class else np.zeros(len(topology))
        levels = schedule.scalar if self._by_class else _levels(schedule)
        ranks = dense_rank(np.column_stack([classes, ~sources, levels]))
        return replace(schedule, priority=ranks, spacing="linear", reason=reason)


def _levels(schedule: Schedule) -> Floats:
    """Priorities in `LEVELS` even steps: copies of an operator whose rates or ages hardly differ are equally urgent."""
    return np.rint(SCALES["unit"].apply(schedule.scalar, schedule.spacing) * LEVELS)


class InProportion(Around):
    """A stage with twice as many rows waiting gets twice the weight, for policies that decide by queues.

    By distances, the longest queue is at the upper end of nice and nearly all others at the lower one. So its stage has
    the core to itself until the next reading of the counters, and what it has put out by then is the longest queue.
    One row more is counted everywhere, so that an empty queue has a weight, too.
    """

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        return replace(
            schedule,
            priority=schedule.scalar + 1.0,
            helper=None if schedule.helper is None else schedule.helper + 1.0,
            spacing="log",
            reason=f"{schedule.reason}; in proportion",
        )


class MainsOnly(Around):
    """Leaves helper threads as they are, as `downstream-first` does by itself."""

    def decide(self, snapshot: Snapshot) -> Schedule:
        return _without_helpers(self.inner.decide(snapshot))


def _without_helpers(schedule: Schedule) -> Schedule:
    return replace(schedule, helper=np.full(len(schedule.priority), np.nan))


class HelpersIfNamed(Around):
    """Leaves helper threads as they are unless the policy says something of them.

    Four of five policies did more rows that way in one run of three repetitions (docs/attach.md). Why is not known: one
    guess is that helpers of less urgent stages, with the nice of their mains, send their messages late.
    """

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        return _without_helpers(schedule) if schedule.helper is None else schedule


class HelpersFirst(Around):
    """Ranks, each row's helper threads just above its main: what waits for a helper must not keep it from running.

    With `spare_least` those of the least urgent rows stand with their mains, which stay ordinary threads. A policy that
    leaves helpers as they are is overruled: an ordinary helper under a real-time main is how nothing moves on.
    """

    def __init__(self, inner: Policy, *, spare_least: bool = False) -> None:
        super().__init__(inner)
        self._spare_least = spare_least

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        if schedule.helper is not None and not np.isnan(schedule.helper).all():
            return schedule
        rank = dense_rank(schedule.priority)
        helper = 2.0 * rank + 1.0
        if self._spare_least:
            helper[rank == 0] = 0.0
        return replace(schedule, priority=2.0 * rank, helper=helper, spacing="linear")


class Grouped(Around):
    """Says itself which rows are a group, by names that stay flat: a "/" in a query's name nests no group."""

    def __init__(self, inner: Policy, kind: str) -> None:
        super().__init__(inner)
        self._kind = kind

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        if schedule.groups is not None:
            return schedule
        found = group(snapshot.topology, schedule, self._kind)
        return replace(schedule, groups=Groups(tuple(map(flat, found.names)), found.of_row, found.priority))


class Nested(Around):
    """A group for each query by the users' priorities, and in it one for each operator by those of the policy.

    `ratio` and `strict` are those of `ByShare`.
    """

    def __init__(self, inner: Policy, ratio: float, *, strict: bool) -> None:
        super().__init__(inner)
        self._ratio, self._strict = ratio, strict

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule, topology = self.inner.decide(snapshot), snapshot.topology
        queries = tuple(flat(query.name) for query in topology.queries)
        given = np.array([query.priority for query in topology.queries])
        worth = bounded(given, self._ratio, strict=self._strict)
        found, sets = group(topology, schedule, "operator"), operator_sets(topology)
        names = tuple(f"{flat(query)}/{flat('+'.join(operators))}" for query, operators in sets.members)
        outer = Groups(queries, topology.query_of, worth)
        return replace(schedule, groups=Groups(names, found.of_row, found.priority, outer))


class Caps(Policy):
    """The most CPUs that each query may use, by the pattern that fits its name."""

    name: ClassVar[str] = "quota"
    steady = True

    def __init__(self, caps: Mapping[str, float]) -> None:
        self._caps = dict(caps)
        self._decided: tuple[Topology, Schedule] | None = None

    def decide(self, snapshot: Snapshot) -> Schedule:
        topology = snapshot.topology
        if self._decided is None or self._decided[0] is not topology:
            caps = np.array([self._cap(query.name) for query in topology.queries])
            groups = Groups(tuple(flat(query.name) for query in topology.queries), topology.query_of, caps)
            self._decided = topology, Schedule(caps[topology.query_of], groups=groups, reason="as given")
        return self._decided[1]

    def _cap(self, query: str) -> float:
        """By its name, also where that has its application's before it: two have a query called so."""
        for pattern, cpus in self._caps.items():
            if fnmatchcase(query, pattern) or fnmatchcase(query, f"*/{pattern}"):
                return cpus
        return np.nan


def flat(name: str) -> str:
    """A name without parts."""
    return name.replace("%", "%25").replace("/", "%2F") if "/" in name else name
