"""Policies that wrap another policy and change the priorities of some kinds of threads.

The kinds are: service threads of the JVM, threads that start batches, stages that read sources, and helper threads.
These policies know what a thread is for, and no knob.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from treadle.decide.policies.around.wrapper import Around
from treadle.decide.policy import Policy
from treadle.decide.transform import SCALES
from treadle.engines.spark.threads.layout import PLANS, of_driver
from treadle.engines.spark.threads.thread_names import ANSWERS, COMPILERS, STARTS
from treadle.model import Floats, Topology
from treadle.values import Schedule, Snapshot, dense_rank

LEVELS = 30
"""Number of steps to which `SourcesLast` rounds priorities: more than the benchmarks need, fewer than nice has."""


class _AroundJvmServiceThreads(Around):
    """Finds the instances of the threads by which a JVM answers requests, once for each topology."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner)
        self._found: tuple[Topology | None, list[int]] = (None, [])

    def answers(self, topology: Topology) -> list[int]:
        if self._found[0] is not topology:
            self._found = topology, _rows(topology, lambda name: name == ANSWERS)
        return self._found[1]


class JvmServiceThreadsFirst(_AroundJvmServiceThreads):
    """Gives the highest priority to the threads by which a JVM answers requests and pauses for garbage collection.

    They have little to do, but the whole JVM waits for them, and so does a thread dump.
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


class JvmServiceThreadsUnchanged(_AroundJvmServiceThreads):
    """Does not change the threads by which a JVM answers requests. For real-time priorities.

    These threads run code of all kinds and wait for locks by yielding. A real-time thread does not yield to ordinary
    ones. So when it waited for a lock of an ordinary stage, that stage could not release the lock, and the application
    stood still.
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


class BatchStartThreadsFirst(Around):
    """Gives the highest priority to the threads that start a batch, and a low one to the JVM's JIT compilers.

    If the policy itself sets priorities for the threads that start a batch, these hold, and compilers are left alone.
    Between two batches all stages wait for their planner, a single thread. At that time the JVM's compilers have most
    to do, and without this policy they take two fifths of a core.
    """

    HELD_BACK = 0.25
    """The priority of compilers, between that of the least urgent (0) and the most urgent instance (1). It is above 0,
    so that sources still wait for compilers."""

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
    """Return the indices of the driver instances whose operator name matches."""
    rows = enumerate(topology.instances)
    return [row for row, each in rows if of_driver(each.query) and are(each.operators[0])]


class SourcesLast(Around):
    """Runs stages that read a source after all other stages; within each of the two kinds the policy decides.

    A query with a single stage, as every query in micro-batches, is not affected: no other stage of it has to process
    what its source reads.

    A fetch from Kafka costs as much for one row as for many, so a source that waits until the other stages are done
    fetches many rows at once. And a priority holds until the next reading of the counters, some tenths of a second: a
    source that runs first has by then filled the queues behind it with rows that are younger than those to be served.
    `by_class` does this within each class of users' priorities only. Only the order of priorities counts, in even
    steps. With their distances, a source with a large backlog would leave nothing to the others; with the ratios of HR,
    the most expensive query would get CPU that the cheapest one needs.

    Use it only for knobs that act on threads. A knob that acts on whole queries gives a query the priority of its most
    urgent stage, even if that stage is its source.
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
        if not sources.any() or not inside.any() or schedule.helper is not None:  # helpers are on the old scale
            return schedule
        reason = f"{schedule.reason}; sources last"
        classes = topology.priority if self._by_class else np.zeros(len(topology))
        levels = schedule.scalar if self._by_class else _levels(schedule)
        ranks = dense_rank(np.column_stack([classes, ~sources, levels]))
        return replace(schedule, priority=ranks, spacing="linear", reason=reason)


def _levels(schedule: Schedule) -> Floats:
    """Round priorities to `LEVELS` even steps: copies of an operator with nearly equal rates or ages share a step."""
    return np.rint(SCALES["unit"].apply(schedule.scalar, schedule.spacing) * LEVELS)


class InProportion(Around):
    """Gives a stage with twice as many waiting rows twice the weight, for policies that decide by queues.

    On a linear scale, the longest queue would be at the upper end of nice and nearly all others at the lower one. The
    stage of that queue would have the core to itself until the next reading of the counters, and by that time its
    output would be the longest queue. One row is added to each queue, so that an empty queue has a weight, too.
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
    """Leaves helper threads as they are unless the policy has priorities for them.

    Four of five policies processed more rows that way in one run of three repetitions (docs/attach.md). The reason is
    not known: one guess is that helpers of less urgent stages, with the nice of their mains, send their messages late.
    """

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        return _without_helpers(schedule) if schedule.helper is None else schedule


class HelpersFirst(Around):
    """Ranks each instance's helpers just above its main thread, which must not starve a helper that it waits for.

    With `spare_least` the helpers of the least urgent instances have the rank of their main threads, which stay
    ordinary threads. A policy that leaves helpers as they are is overruled: with an ordinary helper under a real-time
    main thread, work stops.
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
