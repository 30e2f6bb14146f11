"""Maps priorities to targets: to which threads, instances or groups of which engine the rows of a schedule apply.

A view joins the instances of all engines, so that one decision and one scale span them; targets keep the names that
their own engine gave them. The two formats are those of Lachesis section 5.3, single priorities and groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from operator import is_
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.enforce import Target
from treadle.loop.binding import Binding
from treadle.loop.watch import Watch
from treadle.model import Bools, Floats, Ints, ThreadRef, Topology
from treadle.values import Groups, Snapshot

NOBODY = -1


class KnobTargets(NamedTuple):
    """The targets of one knob of one engine."""

    targets: tuple[Target, ...]
    priority: Floats
    rows: Ints
    """For each target the row of the view that represents it (in a group the most urgent), or `NOBODY`."""
    mine: Bools
    """True if the target belongs to the binding; an unknown priority makes only such targets stale."""


class EngineRows:
    """One engine's topology, and its rows in the view."""

    def __init__(self, watch: Watch, topology: Topology, first: int) -> None:
        self.watch = watch
        self.topology = topology
        self.rows = slice(first, first + len(topology))
        self._threads: tuple[ThreadRef, ...] = topology.threads
        self._place: Ints | None = None  # a thread's position in the topology -> its position among the targets
        place = {thread: i for i, thread in enumerate(dict.fromkeys(topology.threads))}
        if len(place) < len(topology.threads):
            self._threads = tuple(place)
            self._place = np.array([place[thread] for thread in topology.threads], dtype=np.int64)

    def instances(self, priority: Floats, mine: Bools) -> KnobTargets:
        return KnobTargets(self.topology.ids, priority[self.rows], self._row_numbers, mine[self.rows])

    def threads(self, priority: Floats, helper: Floats | None, mine: Bools) -> KnobTargets:
        """Return the threads as targets. `helper` are the priorities of helper threads; None: those of their mains."""
        rows = self.rows.start + self.topology.thread_row
        urgency = priority[rows]
        if helper is not None:
            urgency = np.where(self.topology.thread_is_helper, helper[rows], urgency)
        if self._place is not None:
            urgency, rows = _most_urgent(urgency, rows, self._place)
        return KnobTargets(self._threads, urgency, rows, mine[rows])

    def groups(self, groups: Groups, priority: Floats, mine: Bools) -> KnobTargets:
        """Return all groups, with a priority only for those that have members of known priority in this engine."""
        names, first, group_of = groups.names, self.rows.start, groups.of_row[self.rows]
        order = np.argsort(_lowest_if_unknown(priority[self.rows]), kind="stable")
        order = order[group_of[order] >= 0]
        rows = np.full(len(names), NOBODY)
        rows[group_of[order]] = first + order  # the last value remains: the most urgent member
        known = np.zeros(len(names), dtype=np.bool_)
        known[group_of[order[~np.isnan(priority[first + order])]]] = True
        here = np.zeros(len(names), dtype=np.bool_)
        here[group_of[order[mine[first + order]]]] = True
        return KnobTargets(names, np.where(known, groups.priority, np.nan), rows, here)

    @cached_property
    def silent(self) -> Ints:
        """Rows of the view whose instance has no thread now."""
        return np.setdiff1d(self._row_numbers, self.rows.start + self.topology.thread_row)

    @cached_property
    def _row_numbers(self) -> Ints:
        return np.arange(self.rows.start, self.rows.stop)


class View:
    """Several engines as one topology."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self.parts: list[EngineRows] = []
        self._seen = [watch.topology for watch in watches]
        first = 0
        for watch in watches:
            if watch.topology is not None:
                self.parts.append(EngineRows(watch, watch.topology, first))
                first += len(watch.topology)
        parts = [part.topology for part in self.parts]
        self.topology = Topology.merge(parts) if parts else Topology((), ())
        self.everything = np.ones(len(self.topology), dtype=np.bool_)
        """A mask of all rows. Any mask that covers all rows is this very array, so a test with `is` is enough."""
        self.everything.flags.writeable = False

    def shows(self, watches: Sequence[Watch]) -> bool:
        """Whether the view was made from the current topologies of these engines."""
        return all(map(is_, self._seen, [watch.topology for watch in watches]))

    def snapshot(self) -> Snapshot:
        if not self.parts:
            return Snapshot(self.topology, -math.inf, {})
        return Snapshot.concat([part.watch.snapshot() for part in self.parts], self.topology)

    def answered(self) -> bool:
        """Whether at least one engine has instances and answered its last call."""
        return True in [part.watch.fresh and len(part.topology) > 0 for part in self.parts]

    def fresh(self) -> Bools:
        """Return a mask of the rows of engines to which the last call succeeded."""
        fresh = [part.watch.fresh for part in self.parts]
        if all(fresh):
            return self.everything
        return np.repeat(
            np.array(fresh, dtype=np.bool_), np.array([len(part.topology) for part in self.parts], dtype=np.int64)
        )

    def rows_of(self, binding: Binding, before: Sequence[Binding]) -> Bools:
        """Return a mask of the rows that belong to this binding and to none `before` it."""
        mine = np.zeros(len(self.topology), dtype=np.bool_)
        for part in self.parts:
            name, queries = part.watch.name, [query.name for query in part.topology.queries]
            has = [
                binding.concerns(name, query) and not any(other.concerns(name, query) for other in before)
                for query in queries
            ]
            mine[part.rows] = np.array(has, dtype=np.bool_)[part.topology.query_of]
        return self.everything if mine.all() else mine


def memberships(aim: KnobTargets, groups: Groups) -> NDArray[np.object_]:
    """Return for each target the name of its group; None for a target of unknown priority or without a group."""
    group_of = groups.of_row[aim.rows]
    known = ~np.isnan(aim.priority) & (group_of >= 0)
    wanted = np.full(len(aim.targets), None, dtype=np.object_)
    wanted[known] = np.array(groups.names, dtype=np.object_)[group_of[known]]
    return wanted


def _lowest_if_unknown(priority: Floats) -> Floats:
    return np.where(np.isnan(priority), -np.inf, priority)


def _most_urgent(urgency: Floats, rows: Ints, place: Ints) -> tuple[Floats, Ints]:
    """Give a thread that serves several instances the highest of their priorities, like fused operators in Alg. 2."""
    order = np.argsort(_lowest_if_unknown(urgency), kind="stable")
    best = np.empty(place.max() + 1)
    best_row = np.empty(place.max() + 1, dtype=np.int64)
    best[place[order]] = urgency[order]  # the last value remains
    best_row[place[order]] = rows[order]
    return best, best_row
