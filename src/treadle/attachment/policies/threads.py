"""Policies around others that treat some threads apart: those that answer, start tasks, read sources, or help.

They know what a thread is for, and no knob.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from treadle.attachment.policies.around import Around
from treadle.decide.policy import Policy
from treadle.decide.transform import SCALES
from treadle.engines.spark.threads.layout import PLANS, of_driver
from treadle.engines.spark.threads.naming import ANSWERS, COMPILERS, STARTS
from treadle.model import Floats, Topology
from treadle.values import Schedule, Snapshot, dense_rank

LEVELS = 30
"""Among the rows of one kind, where sources run last. More than the benchmarks need, fewer than nice has."""


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
