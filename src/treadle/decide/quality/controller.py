"""The cycle that keeps promises: every few seconds, how much of its input each sink may have, and who must move.

It decides on numbers that others measured and lets others carry it out. Stream-Economics section 5, Alg. 1, with what
it leaves open: minima that nobody can pay for, work that waits already, and steps too small to be worth taking.
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
    """What was seen since the last cycle. Rates are rows a second, CPU is in cores."""

    time: float
    in_rate: Floats
    """By instance: rows that it worked on, without those that were shed before."""
    out_rate: Floats
    """By task: rows that it sent on, with those that are shed afterwards."""
    arriving: Floats
    """By task: rows that came from outside; only those of sources count."""
    waiting: Floats
    """By task: rows that wait to be taken."""
    cpu: Floats
    """By instance."""
    worker: Ints
    """By instance: where it runs."""
    busy: Floats
    """By worker: what all processes use there, whoever they belong to."""
    cores: Floats
    """By worker."""
    batches: Floats | None = None
    """By instance: batches a second, where rows come in such."""
    behind: bool = True
    """Whether more rows wait than come in half a cycle: without that no minimum is in danger."""
    local: Floats | None = None
    """By task: the part that it takes of what it is sent, where rows are counted; without it, Eq. 4 tells by rates."""
    unknown: Bools | None = None
    """By task: True if that is not known yet, since it has just begun or moved."""
    most: Floats | None = None
    """By instance: the cores that it can use at most; without it, one."""
    fixed: Bools | None = None
    """By task: True if it must receive every row that is sent to it, at any cost."""


class Move(NamedTuple):
    """An instance that is to go to another worker."""

    instance: int
    origin: int
    target: int


class Short(NamedTuple):
    """A sink whose minimum can't be had: what it gets at least, and the CPU that is missing where its tasks run."""

    sink: str
    wants: float
    gets: float
    missing: float
    worker: int
    of: str = "of its input"
    """What `wants` and `gets` are parts of."""

    def told(self, kind: str) -> str:
        """In a line: which, how much is missing, and what would have to give. `kind` is what its owner calls it."""
        return (
            f"{kind} '{self.sink}' is promised {self.wants * 100:.3g}% {self.of} and gets "
            f"{math.floor(self.gets * 1000) / 10:g}%: {max(self.missing, 0.01):.2f} cores are missing "
            "(lower its min_accuracy or one of a higher priority, or add cores)"
        )


@dataclass(frozen=True)
class Decision:
    """What a cycle came to, by task unless it says otherwise."""

    desired: Floats
    """The part of the application's input that each task is to see."""
    streams: Floats
    """By stream: the part of it that is kept."""
    outside: Floats
    """The part that is kept of what comes from outside."""
    current: Floats
    """The accuracy that it has at present."""
    moves: tuple[Move, ...] = ()
    short: tuple[Short, ...] = ()
    free: Floats = field(default_factory=lambda: np.empty(0))
    """By worker: what is left."""


class Controller:
    """Keeps the promises of a flow, cycle by cycle.

    An accuracy falls at once, but rises only by steps of at least `step`, so that it does not flap. What waits is to be
    worked off in `drain` seconds, by `pace` batches a second at least. A worker must be short for `patience` cycles
    before a promise is broken or anybody moves, and an instance that moved is given `warm_up` seconds to get to its
    minimum, while all on its worker are held at theirs. With the seconds of a `cycle`, minima are aimed at from a
    little above, so that they hold in each although rows are dropped by chance.
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
        """What one of another flow had learnt of tasks that have the same names."""
        known = {name: task for task, name in enumerate(before.flow.tasks)}
        for task, name in enumerate(self.flow.tasks):
            if name in known:
                self._costs.copy(task, before._costs, known[name])

    @property
    def warming(self) -> tuple[int, ...]:
        """The instances that have moved and are not yet what they were."""
        return tuple(self._warming)

    @property
    def doubtful(self) -> bool:
        """Whether a worker is short of CPU for minima, but not for long enough yet that somebody moves for that."""
        return any(cycles < self._patience for cycles in self._short_for.values())

    @property
    def whole_rate(self) -> Floats:
        """By task: the rows a second that it would be sent, were nothing dropped before."""
        return self._each * np.maximum(self.flow.copies, 1)

    def promise(self, of_sinks: Floats) -> None:
        """From the next cycle on these are the minima of the sinks, where they follow from what is measured."""
        self._minimum = self.flow.upstream(of_sinks)

    def moved(self, instance: int, time: float) -> None:
        """It runs at another place from now on."""
        self._warming[instance] = time

    def cycle(self, seen: Measured) -> Decision:
        """Alg. 1."""
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
        whole += backlog  # only now: what waits is no reason to break a promise
        least = equations.required(minimum, whole, ALL, most)
        left = available - np.bincount(seen.worker, weights=least[flow.task_of], minlength=len(available))
        left[list(self._warming_workers(seen, current))] = 0.0
        wanted, free = allot(flow, seen.worker, whole, least, minimum, np.maximum(left, 0.0), most)
        desired = flow.upstream(self._steady(wanted, minimum[flow.sinks]))
        streams, outside = equations.keep(flow, desired)
        return Decision(desired, streams, outside, np.minimum(current, 1.0), moves, short, free)

    def _whole(self, seen: Measured, current: Floats) -> tuple[Floats, Floats]:
        """By task: the CPU for all that comes, and what working off what waits takes besides.

        It is the proportion of Eq. 8, cpu / cAc, but of a row's cost that is remembered: so a task that gets nothing
        at present is not held to need a whole core, and does not stay without for ever. One that has had no row yet
        needs nothing: shedding begins when it is known what for.
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
        """By task: its minimum, and so much above it that by chance hardly ever less is kept of a cycle's rows."""
        flow = self.flow
        least, rows = self._minimum[flow.sinks], np.maximum(self._each[flow.sinks] * self._cycle, 1.0)
        above = np.minimum(SURE * np.sqrt(least * (1.0 - least) / rows), MOST_ABOVE) if self._cycle else 0.0
        return flow.upstream(np.minimum(least + above, 1.0))

    def _available(self, seen: Measured) -> Floats:
        """Lines 1 to 3, without what batches cost however few rows are in them: `pace` of them are needed a second.

        What tasks use that get everything is not there for others.
        """
        shared = np.ones(len(seen.cpu)) if seen.fixed is None else ~seen.fixed[self.flow.task_of]
        own = np.bincount(seen.worker, weights=seen.cpu * shared, minlength=len(seen.cores))
        batches = self._pace * self._costs.per_batch[self.flow.task_of] * shared
        always = np.bincount(seen.worker, weights=batches, minlength=len(seen.cores))
        available: Floats = np.maximum(seen.cores - seen.busy + own - always, 0.0)
        return available

    def _steady(self, wanted: Floats, minimum: Floats) -> Floats:
        """Falls are taken at once; rises only if they are worth it, or lead to all or from below the minimum."""
        last = self._last
        if last is not None and len(last) == len(wanted):
            worth = (wanted >= last + self._step) | (wanted >= 1.0) | (last < minimum)
            wanted = np.where(wanted > last, np.where(worth, wanted, last), wanted)
        self._last = np.minimum(wanted, 1.0)
        return self._last

    def _note_short(self, seen: Measured, free: Floats, current: Floats) -> None:
        """For how many cycles each worker could not pay for all minima.

        That begins where rows wait: else all that comes is worked on, whatever was estimated. It goes on, also if none
        wait any more, until there is enough: they don't because of what is dropped.
        """
        short = {int(worker) for worker in np.flatnonzero(free < -EPSILON)} - self._warming_workers(seen, current)
        before = self._short_for
        self._short_for = {
            worker: before.get(worker, 0) + 1
            for worker in short
            if seen.behind or before.get(worker, 0) >= self._patience
        }

    def _moves(self, seen: Measured, free: Floats, least: Floats) -> tuple[Move, ...]:
        """Lines 7 to 14: from workers that can't pay for all minima, to those that have room for one more."""
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
        """By task the minima that can be paid for, and the sinks whose own can't be."""
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
        """The workers of instances that have moved and are not yet at their minimum, as long as that may take."""
        for instance, since in list(self._warming.items()):
            task = self.flow.task_of[instance]
            known = seen.time > since and (seen.unknown is None or not seen.unknown[task])
            there = known and current[task] >= self._minimum[task]
            if there or seen.time - since > self._warm_up:
                del self._warming[instance]
        return {int(seen.worker[instance]) for instance in self._warming}


ALL = np.ones(1)
"""The accuracy that the CPU for all that comes gives."""
SURE = 2.0
"""Standard deviations."""
MOST_ABOVE = 0.05
"""Above a minimum; of a handful of rows nobody can say what part was kept."""
FAINT = 0.01
"""An accuracy below which what a task is sent tells nothing of what it would be sent."""
