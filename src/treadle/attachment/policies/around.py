"""Policies that wrap another policy and adapt its priorities to what an enforcer needs.

They know instances and priorities, and no knob. `Seen` keeps the last decision, so that it can be shown.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import ClassVar

import numpy as np

from treadle.decide import registry
from treadle.decide.adaptive import Adaptive
from treadle.decide.grouping import group
from treadle.decide.logical import operator_sets
from treadle.decide.policies.around.wrapper import Around
from treadle.decide.policy import Policy
from treadle.decide.transform import SCALES
from treadle.errors import ConfigError
from treadle.model import Floats, Topology
from treadle.observe.plan import plannable
from treadle.values import Groups, Schedule, Snapshot, dense_rank

SHOWN = ("queue", "external_queue", "tuples_out", "latency", "cost", "rate", "cpu", "wait")
"""Metrics that are shown to people, whatever the policy needs."""


class Seen(Around):
    """Keeps the last snapshot and the decision on it. It also wants the metrics in `SHOWN`."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner)
        self.wants = tuple(dict.fromkeys((*inner.wants, *(name for name in SHOWN if name not in inner.needs))))
        self.last: tuple[Snapshot, Schedule] | None = None

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        self.last = (snapshot, schedule)
        return schedule


class AdaptiveUnderAttach(Around):
    """A learner that judges its candidates by what can be measured of an application from outside (AMoS section 3.2).

    Throughput is the number of rows that the application finishes per second. The total queue is the number of rows
    that wait in Kafka or are being processed (`engines.spark.kafka.flow`). The age of rows is unknown.
    """

    COLUMNS: ClassVar[Mapping[str, str]] = {
        "output_rate": "rate",
        "total_queue": "external_queue",
        "queue_variance": "queue",
    }
    """Metric of an objective -> metric of instances to request, since an engine measures both together."""

    def __init__(self, inner: Adaptive, offers: Collection[str]) -> None:
        """Refuse candidates and objectives for which not enough is measured."""
        super().__init__(inner)
        self.learner = inner
        what = "running Spark applications"
        for label, policy in inner.policies.items():
            if missing := [metric for metric in policy.needs if not plannable(metric, offers)]:
                served = [each.name for each in registry.describe() if all(plannable(n, offers) for n in each.needs)]
                raise ConfigError(
                    f"candidate '{label}' needs {' and '.join(missing)}, which {what} don't provide",
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
    """Users' priorities as shares of the CPU: the ratio of two priorities is that of their weights, up to `ratio` to 1.

    Wider ranges are compressed until they fit; 1, the priority of queries that no pattern matches, stays 1. With
    `strict` only the order counts: the highest has `ratio` times the weight of the lowest, and the others are between
    them in even steps. In both cases the lowest priority keeps some part of the CPU.
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
    """Return positive priorities, of which none is more than `ratio` times another (see `ByShare`). NaN stays NaN."""
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
    known = np.where(positive, logs * squeeze, top * squeeze - room)  # a priority of 0 gets the least part
    return np.where(np.isnan(priority), np.nan, np.exp(known))


class WithinQuery(Around):
    """Spreads the priorities of each query over the whole scale.

    For threads in one cgroup per query: the kernel compares only threads of the same cgroup.
    """

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        count = len(schedule.scalar)
        helper = schedule.scalar if schedule.helper is None else schedule.helper
        both = np.concatenate([schedule.scalar, helper])  # on one scale, since they are compared
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


class Grouped(Around):
    """Groups the instances by query, operator or class, unless the wrapped policy has set groups.

    A "/" in a name is escaped: it must not make a nested group.
    """

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
    """Makes a group for each query, with the user's priority, and in it a group for each operator, with the policy's.

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
    """The most CPUs that each query may use, by the first pattern that matches its name."""

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
        """Return the cap of a query, named `query`, or `application/query` if two applications use the name."""
        for pattern, cpus in self._caps.items():
            if fnmatchcase(query, pattern) or fnmatchcase(query, f"*/{pattern}"):
                return cpus
        return np.nan


def flat(name: str) -> str:
    """Escape "/" in a name, so that a group with this name is not nested."""
    return name.replace("%", "%25").replace("/", "%2F") if "/" in name else name
