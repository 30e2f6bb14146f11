"""Keeps promises in cycles of a few seconds: decides which share of its input each sink gets, and which instances move.

It is Alg. 1 of Stream-Economics, section 5, and handles what the paper leaves open: minima that exceed the CPU, rows
that wait already, and changes too small to be useful.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from treadle.decide.quality import equations
from treadle.decide.quality.allot import allot
from treadle.decide.quality.costs import Costs
from treadle.decide.quality.flow import Flow
from treadle.decide.quality.minima import EPSILON, Needs, fitting
from treadle.decide.quality.moves import best_worker, leavers
from treadle.model import Bools, Floats, Ints


class Measured(NamedTuple):
    """Measurements since the last cycle. Rates are in rows per second, CPU is in cores."""

    time: float
    in_rate: Floats
    """By instance: rows that it processed, without rows that were shed before."""
    out_rate: Floats
    """By task: rows that it sent, including rows that are shed afterwards."""
    arriving: Floats
    """By task: rows that arrived from outside; only sources count."""
    waiting: Floats
    """By task: rows that wait in front of it."""
    cpu: Floats
    """By instance."""
    worker: Ints
    """By instance: where it runs."""
    busy: Floats
    """By worker: CPU that all processes on it use, also those that are not ours."""
    cores: Floats
    """By worker: how many it has."""
    batches: Floats | None = None
    """By instance: batches per second, if it runs in batches."""
    behind: bool = True
    """True if more rows wait than arrive in half a cycle; otherwise no minimum is in danger."""
    local: Floats | None = None
    """By task: the share of its input that it processes, if rows are counted; None: computed from rates by Eq. 4."""
    unknown: Bools | None = None
    """By task: True if `local` is not known yet, since the task has just started or moved."""
    most: Floats | None = None
    """By instance: the cores that it can use at most; None: one."""
    fixed: Bools | None = None
    """By task: True if it must receive every row that is sent to it, at any cost."""


class Move(NamedTuple):
    """An instance and the worker to which it should move."""

    instance: int
    origin: int
    target: int


class Short(NamedTuple):
    """A sink that can't have its minimum: the share that it gets, and the CPU missing on a worker of its tasks."""

    sink: str
    wants: float
    gets: float
    missing: float
    worker: int
    of: str = "of its input"
    """Words for logs: of what `wants` and `gets` are shares."""

    def told(self, kind: str) -> str:
        """Return a line for logs: the sink, the missing CPU and remedies. `kind` is a word for it, such as query."""
        return (
            f"{kind} '{self.sink}' is promised {self.wants * 100:.3g}% {self.of} and gets "
            f"{math.floor(self.gets * 1000) / 10:g}%: {max(self.missing, 0.01):.2f} cores are missing "
            "(lower its min_accuracy or that of a higher priority, or add cores)"
        )


@dataclass(frozen=True)
class Decision:
    """The result of a cycle, by task unless stated otherwise."""

    desired: Floats
    """The target of each task: the share of the application's input that it should get."""
    streams: Floats
    """By stream: the share of its rows to keep."""
    outside: Floats
    """The share to keep of the rows that arrive from outside."""
    current: Floats
    """The present accuracy: the share of the application's input that the task gets now, at most 1."""
    moves: tuple[Move, ...] = ()
    short: tuple[Short, ...] = ()
    free: Floats = field(default_factory=lambda: np.empty(0))
    """By worker: the CPU that is left."""
    whole: Floats = field(default_factory=lambda: np.empty(0))
    """The cores that each instance needs for all of its input, without its backlog; 0 if that is unknown."""


class Controller:
    """Keeps the promises of a flow, cycle by cycle.

    An accuracy falls at once, but rises only by steps of at least `step`, so that it does not oscillate. Waiting rows
    should be processed within `drain` seconds, and CPU for `pace` batches per second is reserved. A worker must be
    short of CPU for `patience` cycles before a promise is broken or an instance moves. An instance that moved has
    `warm_up` seconds to reach its minimum, while all tasks on its worker are held at their minima. If the seconds of a
    `cycle` are given, targets are a little above the minima, so that each cycle meets them although rows are dropped at
    random.
    """

    def __init__(
        self,
        flow: Flow,
        *,
        step: float = 0.01,
        drain: float = 20.0,
        pace: float = 0.5,
        cycle: float = 0.0,
        patience: int = 2,
        warm_up: float = 60.0,
    ) -> None:
        self.flow = flow
        self._step = step
        self._drain = drain
        self._pace = pace
        self._cycle = cycle
        self._patience = patience
        self._warm_up = warm_up
        self._warming: dict[int, float] = {}
        self._short_for: dict[int, int] = {}
        self._last: Floats | None = None
        self._minimum = flow.minimum
        self._costs = Costs(len(flow))
        self._each = np.zeros(len(flow))

    def remember(self, before: Controller) -> None:
        """Copy what the controller of another flow has learnt of tasks with the same names."""
        known = {name: task for task, name in enumerate(before.flow.tasks)}
        for task, name in enumerate(self.flow.tasks):
            if name in known:
                self._costs.copy(task, before._costs, known[name])

    def follow(self, flow: Flow) -> None:
        """Keep the promises of another flow of the same tasks from the next cycle on."""
        self.flow, self._minimum = flow, flow.minimum

    @property
    def warming(self) -> tuple[int, ...]:
        """The instances that have moved and have not reached their minimum yet."""
        return tuple(self._warming)

    @property
    def doubtful(self) -> bool:
        """True if a worker is short of CPU for minima, but for less than `patience` cycles."""
        return any(cycles < self._patience for cycles in self._short_for.values())

    @property
    def whole_rate(self) -> Floats:
        """By task: the rows per second that it would get if nothing were dropped upstream."""
        return self._each * np.maximum(self.flow.copies, 1)

    def promise(self, of_sinks: Floats) -> None:
        """Set other minima of the sinks from the next cycle on: for minima that depend on measurements."""
        self._minimum = self.flow.upstream(of_sinks)

    def moved(self, instance: int, time: float) -> None:
        """Record that an instance runs on another worker from now on."""
        self._warming[instance] = time

    def cycle(self, seen: Measured) -> Decision:
        """Run one cycle, Alg. 1."""
        flow = self.flow
        local = seen.local
        if local is None:
            local = equations.local_accuracy(flow, seen.in_rate, seen.out_rate, seen.arriving)
        current = equations.current_accuracy(flow, local)
        whole, backlog = self._whole(seen, current)
        available = self._available(seen)
        minimum = self._minimum
        most = np.ones(len(flow)) if seen.most is None else equations.least_of_tasks(flow, seen.most)
        least = equations.required(minimum, whole, ALL, most)
        free = available - np.bincount(seen.worker, weights=least[flow.task_of], minlength=len(available))
        self._note_short(seen, free, current)
        moves = self._moves(seen, free.copy(), least)
        minimum, short = self._affordable(seen, available, whole, most, free)
        if not short:
            minimum = self._aimed()
        urgent = whole + backlog  # only now: waiting rows are no reason to break a promise
        least = equations.required(minimum, urgent, ALL, most)
        left = available - np.bincount(seen.worker, weights=least[flow.task_of], minlength=len(available))
        left[list(self._warming_workers(seen, current))] = 0.0
        wanted, free = allot(flow, seen.worker, urgent, least, minimum, np.maximum(left, 0.0), most)
        desired = flow.upstream(self._steady(wanted, minimum[flow.sinks]))
        streams, outside = equations.keep(flow, desired)
        return Decision(desired, streams, outside, np.minimum(current, 1.0), moves, short, free, whole)

    def _whole(self, seen: Measured, current: Floats) -> tuple[Floats, Floats]:
        """Return by task the CPU for all of its input, and the CPU for working off its waiting rows.

        It is the proportion of Eq. 8, cpu / cAc, but with the remembered cost of a row. Otherwise a task that gets
        nothing at present would seem to need a whole core, and would never get any. A task that has had no row yet
        needs nothing.
        """
        flow = self.flow
        cpu = equations.cpu_of_tasks(flow, seen.in_rate, seen.cpu)
        slowest = equations.least_of_tasks(flow, seen.in_rate)
        batches = np.zeros(len(flow)) if seen.batches is None else equations.least_of_tasks(flow, seen.batches)
        self._costs.update(slowest, batches, cpu)
        before = flow.lowest_upstream(current)
        copies = np.maximum(flow.copies, 1)
        each = equations.sent(flow, seen.out_rate, seen.arriving) / copies
        self._each = np.where(before > FAINT, each / np.maximum(before, FAINT), self._each)
        per_row = self._costs.per_row if seen.fixed is None else np.where(seen.fixed, 0.0, self._costs.per_row)
        return per_row * self._each, per_row * seen.waiting / self._drain / copies

    def _aimed(self) -> Floats:
        """Return by task its minimum plus a margin, so that random drops hardly ever keep less of a cycle's rows."""
        flow = self.flow
        least, rows = self._minimum[flow.sinks], np.maximum(self._each[flow.sinks] * self._cycle, 1.0)
        above = np.minimum(SURE * np.sqrt(least * (1.0 - least) / rows), MOST_ABOVE) if self._cycle else 0.0
        return flow.upstream(np.minimum(least + above, 1.0))

    def _available(self, seen: Measured) -> Floats:
        """Lines 1 to 3: by worker, the CPU that is left for tasks that may lose rows.

        Other processes, `fixed` tasks and the fixed cost of `pace` batches per second are subtracted.
        """
        shared = np.ones(len(seen.cpu)) if seen.fixed is None else ~seen.fixed[self.flow.task_of]
        own = np.bincount(seen.worker, weights=seen.cpu * shared, minlength=len(seen.cores))
        batches = self._pace * self._costs.per_batch[self.flow.task_of] * shared
        always = np.bincount(seen.worker, weights=batches, minlength=len(seen.cores))
        available: Floats = np.maximum(seen.cores - seen.busy + own - always, 0.0)
        return available

    def _steady(self, wanted: Floats, minimum: Floats) -> Floats:
        """Return the accuracy of each sink: a fall is accepted at once, a rise only in three cases.

        It must be at least `step`, reach 1, or begin below the minimum.
        """
        last = self._last
        if last is not None and len(last) == len(wanted):
            worth = (wanted >= last + self._step) | (wanted >= 1.0) | (last < minimum)
            wanted = np.where(wanted > last, np.where(worth, wanted, last), wanted)
        self._last = wanted
        return wanted

    def _note_short(self, seen: Measured, free: Floats, current: Floats) -> None:
        """Count for each worker the cycles in which it was short of CPU for all minima.

        Counting begins only while rows wait: otherwise all input is processed, whatever was estimated. After `patience`
        cycles it continues even if no rows wait, until the CPU suffices: no rows wait then because rows are dropped.
        """
        short = {int(worker) for worker in np.flatnonzero(free < -EPSILON)} - self._warming_workers(seen, current)
        before = self._short_for
        self._short_for = {
            worker: before.get(worker, 0) + 1
            for worker in short
            if seen.behind or before.get(worker, 0) >= self._patience
        }

    def _moves(self, seen: Measured, free: Floats, least: Floats) -> tuple[Move, ...]:
        """Lines 7 to 14: move instances from workers that are short of CPU to workers with room for them."""
        of_instance = least[self.flow.task_of]
        found: list[Move] = []
        for worker, cycles in self._short_for.items():
            if cycles < self._patience:
                continue
            here = np.flatnonzero(seen.worker == worker)
            priority = self.flow.priority[self.flow.task_of[here]]
            for position in leavers(-free[worker], of_instance[here], priority):
                instance = int(here[position])
                others = np.arange(len(free)) != worker
                target = best_worker(free, float(of_instance[instance]), others)
                if target is not None:
                    found.append(Move(instance, worker, target))
                    free[target] -= of_instance[instance]
        return tuple(found)

    def _affordable(
        self, seen: Measured, available: Floats, whole: Floats, most: Floats, free: Floats
    ) -> tuple[Floats, tuple[Short, ...]]:
        """Return by task the minima that the CPU allows, and the sinks that get less than their own minima."""
        flow = self.flow
        allowed = self._minimum[flow.sinks]
        found: dict[int, Short] = {}
        for worker in np.flatnonzero(free < -EPSILON).tolist():
            if self._short_for.get(worker, 0) < self._patience:
                continue
            before = allowed
            needs = Needs(flow, seen.worker == worker, whole, most)
            allowed, missing = fitting(needs, float(available[worker]), before)
            for sink in np.flatnonzero(allowed < before).tolist():
                task = int(flow.sinks[sink])
                wants, gets = float(self._minimum[task]), float(allowed[sink])
                found[sink] = Short(flow.tasks[task], wants, gets, float(missing[sink]), worker)
        return flow.upstream(allowed), tuple(found.values())

    def _warming_workers(self, seen: Measured, current: Floats) -> set[int]:
        """Return the workers of instances that moved and are below their minimum, for at most `warm_up` seconds."""
        for instance, since in list(self._warming.items()):
            task = self.flow.task_of[instance]
            known = seen.time > since and (seen.unknown is None or not seen.unknown[task])
            there = known and current[task] >= self._minimum[task]
            if there or seen.time - since > self._warm_up:
                del self._warming[instance]
        return {int(seen.worker[instance]) for instance in self._warming}


ALL = np.ones(1)
"""The accuracy that the CPU for all input gives: 1, for `equations.required`."""
SURE = 2.0
"""The margin above a minimum, in standard deviations of the share of rows that random drops keep in a cycle."""
MOST_ABOVE = 0.05
"""The largest margin above a minimum, as accuracy. With few rows the standard deviation would make it too large."""
FAINT = 0.01
"""Least accuracy upstream of a task at which its input shows what it would be without drops."""
