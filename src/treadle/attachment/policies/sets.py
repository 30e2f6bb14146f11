"""Sets of queries by rules, under the kernel's knobs: each set has its part of the CPU, and its own policy inside.

With CPU groups each set is a group, whose weight is the priority of the set, and threads are compared inside of it.
With nice alone, priorities are ratios between the most urgent threads of two sets. Real-time priorities and time slices
are orders: sets are in the order of their priorities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from treadle.attachment.policies.around import ByShare, Seen, bounded, flat
from treadle.attachment.policies.limits import FINE, STEPS, WIDEST, limits_of
from treadle.attachment.policies.threads import (
    HelpersFirst,
    HelpersIfNamed,
    InProportion,
    JvmServiceThreadsFirst,
    JvmServiceThreadsUnchanged,
    MainsOnly,
    SourcesLast,
)
from treadle.decide import query_rules
from treadle.decide.policies import CongestionAware, Fcfs, HighestRate, MultiClass, QueueSize, UserPriority
from treadle.decide.policies.around.query_sets import OTHERS, Periodic, QuerySet, QuerySets, places
from treadle.decide.policies.around.wrapper import Around
from treadle.decide.policy import Policy
from treadle.decide.query_rules import QueryRule
from treadle.decide.transform import NICE_STEP, Scale, nice, rt, shares, slices, weight
from treadle.engines.spark.threads.layout import of_driver
from treadle.model import Floats
from treadle.values import Groups, Schedule, Snapshot

DRIVER = "driver"
"""The label of the set of the threads that plan and schedule inside Spark."""


def sets_of(rules: Sequence[QueryRule], own: Policy, period: float) -> QuerySets:
    """Return the sets of these rules, of all other queries, and of drivers, for which all queries wait.

    A driver is as important as the most important set, unless a rule names it without a pattern.
    """
    ordinary = query_rules.sets_of(rules, own, period)
    made = [replace(each, matches=_matcher(rule)) for each, rule in zip(ordinary, rules, strict=False)]
    most = max(each.priority for each in ordinary)
    return QuerySets([*made, QuerySet(DRIVER, of_driver, UserPriority(), most), ordinary[-1]])


def _matcher(rule: QueryRule) -> Callable[[str], bool]:
    """Two applications may have queries of one name: then the name of the application comes before it, with a slash."""

    def matches(query: str) -> bool:
        if of_driver(query):
            return query.rpartition("/")[2] == rule.queries
        return rule.matches(query) or rule.matches(query.rpartition("/")[2])

    return matches


def rule_of(rules: Sequence[QueryRule], query: str) -> str | None:
    """Return the pattern of the rule that counts for a query; None if there is none."""
    return next((rule.queries for rule in rules if _matcher(rule)(query)), None)


def _suited(policy: Policy, knob: str, helpers: object) -> Policy:
    """Return the policy of one set as the knob needs it.

    `helpers` is the enforcer's option: a bool, or other text for what suits the policy.
    """
    own = policy.inner if isinstance(policy, Periodic) else policy
    if isinstance(own, (Fcfs, HighestRate, MultiClass)) and knob != "slice":
        policy = SourcesLast(policy, by_class=isinstance(own, MultiClass))
    elif isinstance(own, (CongestionAware, QueueSize)) and knob == "nice":
        policy = InProportion(policy)
    elif isinstance(own, UserPriority) and knob == "nice":
        policy = ByShare(policy, WIDEST, strict=False)
    if not helpers:
        return MainsOnly(policy)
    return policy if helpers is True or isinstance(own, UserPriority) else HelpersIfNamed(policy)


class _OfSets(Around):
    """Takes the decisions of the sets, each by a policy as the knob needs it; `seen` keeps the common order."""

    def __init__(self, seen: Seen, sets: QuerySets) -> None:
        super().__init__(seen)
        self._sets = sets

    def _levels(self, ratio: float, *, strict: bool) -> Floats:
        """Return the weight of each set, of which none is more than `ratio` times another."""
        return bounded(np.array([each.priority for each in self._sets.sets]), ratio, strict=strict)


class InOrder(_OfSets):
    """Sets by priority, and inside of each the order of its policy."""

    def decide(self, snapshot: Snapshot) -> Schedule:
        self.inner.decide(snapshot)
        return self._sets.decide(snapshot)


class WithinSets(_OfSets):
    """Spreads the priorities of each set over the whole of a knob's scale, since a CPU group has threads of one set."""

    def __init__(self, seen: Seen, sets: QuerySets, scale: Scale) -> None:
        super().__init__(seen, sets)
        self._scale = scale

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        parts = self._sets.parts(snapshot)
        main, helper = np.full((2, len(snapshot.topology)), np.nan)
        for _, rows, part in parts:
            main[rows], helper[rows] = _scaled(part, self._scale)
        return replace(_numbers(schedule, main, helper, self._scale), reason=self._sets.reason(parts))


class NiceOfSets(_OfSets):
    """Divides the range of nice: the most urgent threads of two sets have the ratio of the priorities of the sets.

    From there on, each set has an equal number of steps for what its policy decides. Priorities take at most `STEPS`
    and at most half of the range, so that something is left for the policies.
    """

    def __init__(self, seen: Seen, sets: QuerySets, low: float, high: float, *, strict: bool) -> None:
        super().__init__(seen, sets)
        room = min(STEPS, math.floor((high - low) / 2))
        weights = np.log(self._levels(NICE_STEP**room, strict=strict)) / math.log(NICE_STEP)
        self._first = low + np.rint(weights.max() - weights)
        """By set: the nice of its most urgent thread."""
        inside = high - self._first.max()
        self._scale = replace(nice(low, low + inside), neutral=low)
        self._low = low

    def decide(self, snapshot: Snapshot) -> Schedule:
        schedule = self.inner.decide(snapshot)
        parts = self._sets.parts(snapshot)
        main, helper = np.full((2, len(snapshot.topology)), np.nan)
        for number, rows, part in parts:
            steps = [each - self._low for each in _scaled(part, self._scale)]
            if np.isnan(steps[0]).all():  # nothing is known of the set but its priority
                steps[0] = np.zeros(len(rows))
                steps[1] = steps[0] if part.helper is None else steps[1]
            main[rows], helper[rows] = (self._first[number] + each for each in steps)
        return replace(_numbers(schedule, main, helper, self._scale), reason=self._sets.reason(parts))


class GroupsOfSets(_OfSets):
    """Makes a CPU group for each set, with the weight of its priority; with `queries` also one for each query inside.

    The weight of a query in the group of its set follows from the set's policy, up to `ratio` to 1.
    """

    def __init__(self, seen: Seen, sets: QuerySets, ratio: float, *, strict: bool, queries: bool) -> None:
        super().__init__(seen, sets)
        self._ratio, self._queries = ratio, queries
        self._weights = self._levels(ratio, strict=strict)
        numbered = [f"rule-{number}" for number in range(1, len(sets.sets) - 1)]
        self._names = (*numbered, DRIVER, OTHERS)

    def decide(self, snapshot: Snapshot) -> Schedule:
        self.inner.decide(snapshot)
        topology, parts = snapshot.topology, self._sets.parts(snapshot)
        inside, of_row = np.zeros(len(topology)), np.zeros(len(topology), dtype=np.int64)
        for index, (_, rows, part) in enumerate(parts):
            place = places(part)[0]
            inside[rows] = self._ratio ** (np.where(np.isnan(place), 0.0, place) - 1.0)
            of_row[rows] = index
        chosen = [part.number for part in parts]
        names, weights = tuple(self._names[number] for number in chosen), self._weights[chosen]
        groups = Groups(names, of_row, weights)
        if self._queries:
            best = np.zeros(len(topology.queries))
            np.maximum.at(best, topology.query_of, inside)
            set_of = dict(zip(topology.query_of.tolist(), of_row.tolist(), strict=True))
            whole = tuple(f"{names[set_of.get(number, 0)]}/{flat(query.name)}"
                          for number, query in enumerate(topology.queries))  # fmt: skip
            groups = Groups(whole, topology.query_of, best, groups)
        reason = self._sets.reason(parts)
        return Schedule(weights[of_row] * inside, groups=groups, spacing="log", reason=reason)


def by_groups(
    seen: Seen, sets: QuerySets, options: Mapping[str, Any], version: int, *, strict: bool, alone: bool
) -> tuple[Policy, Scale]:
    """Return the policy for CPU groups of this version, and its scale. `alone`: no other enforcer is used."""
    limits = {key: options[key] for key in ("low", "high") if options[key]}
    ratio = limits["high"] / limits["low"] if len(limits) == 2 else WIDEST
    scale = (shares if version == 1 else weight)(**(limits or FINE[version]))
    return GroupsOfSets(seen, sets, ratio, strict=strict, queries=alone), scale


def by_threads(
    name: str, seen: Seen, sets: QuerySets, options: Mapping[str, Any], *, strict: bool, within: bool
) -> tuple[Policy, Scale]:
    """Return the policy for the threads' knob `name`, and its scale. `within`: each set has a CPU group of its own."""
    helpers, (low, high) = options.get("helpers", "auto"), limits_of(options)
    own = sets.through(lambda policy: _suited(policy, name, helpers))
    scale = {"nice": nice, "rt": rt, "slice": slices}[name](low, high)
    policy: Policy
    if within:
        policy, scale = WithinSets(seen, own, scale), as_given(scale)
    elif name == "nice":
        policy, scale = NiceOfSets(seen, own, low, high, strict=strict), as_given(scale)
    else:
        policy = InOrder(seen, own)
    if name != "rt":
        return JvmServiceThreadsFirst(policy), scale
    policy = HelpersFirst(policy, spare_least=low == 0) if helpers else policy
    return JvmServiceThreadsUnchanged(policy), scale


def as_given(scale: Scale) -> Scale:
    """Return a scale for numbers that are on this scale already, with the sign by which a higher one is more urgent."""
    sign = 1.0 if scale.rising else -1.0
    return replace(scale, neutral=None, place=lambda priority, _: sign * priority)


def _scaled(schedule: Schedule, scale: Scale) -> tuple[Floats, Floats]:
    """Return the numbers of a scale for main threads and for helpers."""
    count = len(schedule.scalar)
    helper = schedule.scalar if schedule.helper is None else schedule.helper
    both = scale.apply(np.concatenate([schedule.scalar, helper]), schedule.spacing)
    return both[:count], both[count:]


def _numbers(schedule: Schedule, main: Floats, helper: Floats, scale: Scale) -> Schedule:
    sign = 1.0 if scale.rising else -1.0
    return replace(schedule, priority=(sign * main)[:, None], helper=sign * helper, spacing="linear")
