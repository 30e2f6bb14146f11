"""Progress charts of whole plans: which operators form a chain of Babcock's Chain policy, and how steep it is.

Charts depend on costs, selectivities and the graph, not on queues and ages. A chain is a segment of the lower envelope
(Haren section 7.2). On a graph with branches it is a block of Horn's algorithm for trees, which on a path is the same.

A tuple that enters an operator has size 1. Processing it costs `c` and sends `selectivity` to each consumer, so it
frees `1 - selectivity * consumers` of memory; the output of a sink leaves the system. The block of an operator is the
connected part of the plan downstream of it, itself included, that frees most per second of cost (its slope); of equals,
the larger one. Blocks are found from the sinks upstream: an operator's agenda lists the blocks downstream of it,
steepest first, and its own block absorbs them as long as they are at least as steep as itself. Every block is steeper
than those that follow it, so an agenda sorted by slope never breaks the order of the plan. A block on several paths is
in an agenda once, with the flows added.

An operator with unknown numbers has the slope NaN and is ranked in agendas by an upper bound, 1 / c: no tuple frees
more than itself. So a block is unknown only where the missing number could change it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from treadle.model import Bools, Floats, Ints, Level, Topology

SHORTEST = 1e-9
"""The least cost in seconds: a measured cost of 0 means less than the resolution of the clock, a nanosecond."""


@dataclass(frozen=True)
class Stage:
    """The rows at one distance from the sinks. Rows with the same consumers (copies of an operator) share one agenda.

    Such a shared agenda is a menu: `menu_of` is the menu of each row, and the edges are listed for each menu.
    """

    rows: Ints
    menu_of: Ints
    menus: int
    edge_menu: Ints  # ascending
    edge_to: Ints
    share: Floats
    branches: bool


@dataclass(frozen=True)
class Plan:
    """The part of a topology that the envelope needs, sinks first. It is valid as long as the topology."""

    stages: tuple[Stage, ...]
    consumers: Floats
    is_sink: Bools


def plan_of(topology: Topology) -> Plan:
    """Build the plan of a topology."""
    start, _, share = topology.edges
    consumers = np.zeros(len(topology))
    np.add.at(consumers, start, share)
    stages = tuple(_stage(level) for level in topology.levels if len(level.rows))
    return Plan(stages, consumers, topology.is_sink)


class Envelope:
    """The block that begins at each row: what it frees, what it costs, its slope, and which blocks follow it.

    In a row's agenda, entries from `begin` to `taken` are part of its block and entries from `taken` to `end` follow
    it. Agendas count per tuple that leaves the row; `flow` tuples leave for each that enters.
    """

    def __init__(self, plan: Plan, cost: Floats, selectivity: Floats) -> None:
        self.plan = plan
        self.flow = np.where(plan.is_sink, 0.0, np.where(np.isfinite(selectivity), selectivity, np.nan))
        self.cost = np.maximum(np.where(np.isfinite(cost), cost, np.nan), SHORTEST)
        self.freed = 1.0 - self.flow * plan.consumers
        self.slope = self.freed / self.cost
        self.bound = np.where(np.isnan(self.cost), np.inf, 1.0 / self.cost)
        self.begin, self.taken, self.end = (np.zeros(len(cost), dtype=np.int64) for _ in range(3))
        self.agenda = np.empty(len(cost), dtype=np.int64)
        self.agenda_flow = np.empty(len(cost))
        self._used = 0
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow becomes NaN
            for stage in plan.stages:
                self._draw_up(stage)
                self._take_in(stage.rows)

    def slopes(self) -> tuple[Floats, Bools]:
        """Row -> the slope of the steepest block that contains it, and whether the row begins that block.

        A row begins a block if no known row feeds it, as with sources, or if its block is in the agenda behind the
        block of such a row.
        """
        steepest = np.full(len(self.slope), -np.inf)
        is_head = np.zeros(len(self.slope), dtype=np.bool_)
        for stage in reversed(self.plan.stages):
            rows = stage.rows
            first = rows[np.isneginf(steepest[rows])]
            heads = np.concatenate([first, self.agenda[_ranges(self.taken[first], self.end[first])]])
            steepest[heads] = self.slope[heads]
            is_head[heads] = True
            inside = self.agenda[_ranges(self.begin[rows], self.taken[rows])]
            np.maximum.at(steepest, inside, np.repeat(steepest[rows], self.taken[rows] - self.begin[rows]))
        return steepest, is_head

    def members(self, head: int) -> tuple[int, ...]:
        """Return the rows of the block that begins at `head`, in the order of the agenda."""
        found: dict[int, None] = {}
        todo = [head]
        while todo:
            row = todo.pop()
            if row in found:  # reached on another path already
                continue
            found[row] = None
            todo += reversed(self.agenda[self.begin[row] : self.taken[row]].tolist())
        return tuple(found)

    def _draw_up(self, stage: Stage) -> None:
        """Write a stage's agendas: the blocks of its consumers and the blocks that follow those, steepest first."""
        to, taken, end = stage.edge_to, self.taken[stage.edge_to], self.end[stage.edge_to]
        size = 1 + end - taken
        heads, flows = np.empty(size.sum(), dtype=np.int64), np.empty(size.sum())
        first = np.cumsum(size) - size
        follows = np.ones(len(heads), dtype=np.bool_)
        follows[first] = False
        behind = _ranges(taken, end)
        heads[first], flows[first] = to, stage.share
        heads[follows] = self.agenda[behind]
        flows[follows] = self.agenda_flow[behind] * np.repeat(stage.share * self.flow[to], size - 1)
        menu = np.repeat(stage.edge_menu, size)
        if stage.branches:
            menu, heads, flows = self._sort(menu, heads, flows)
        length = np.bincount(menu, minlength=stage.menus)
        begin = self._append(heads, flows) + np.cumsum(length) - length
        rows, of = stage.rows, stage.menu_of
        self.begin[rows], self.end[rows] = begin[of], begin[of] + length[of]

    def _sort(self, menu: Ints, heads: Ints, flows: Floats) -> tuple[Ints, Ints, Floats]:
        """Sort each menu steepest first; a block that is reached on several paths is kept once, with all its flow."""
        order = np.lexsort((heads, -self._rank(heads), menu))
        menu, heads, flows = menu[order], heads[order], flows[order]
        new = np.flatnonzero((np.diff(menu, prepend=-1) != 0) | (np.diff(heads, prepend=-1) != 0))
        return menu[new], heads[new], np.add.reduceat(flows, new)

    def _take_in(self, rows: Ints) -> None:
        """Extend each row's block by the next block of the row's agenda, while the next block is at least as steep."""
        blind = rows[np.isnan(self.slope[rows]) | (self.flow[rows] == 0)]  # nothing known follows
        self.end[blind] = self.begin[blind]
        self.taken[rows] = self.begin[rows]
        growing = rows[self.taken[rows] < self.end[rows]]
        while len(growing):
            head = self.agenda[self.taken[growing]]
            steep = self._rank(head) >= self.slope[growing]
            growing, head = growing[steep], head[steep]
            flow = self.flow[growing] * self.agenda_flow[self.taken[growing]]
            self.freed[growing] += flow * self.freed[head]
            self.cost[growing] += flow * self.cost[head]
            self.slope[growing] = self.freed[growing] / self.cost[growing]
            self.taken[growing] += 1
            growing = growing[self.taken[growing] < self.end[growing]]
        unknown = rows[np.isnan(self.slope[rows])]
        self.freed[unknown] = np.nan
        self.taken[unknown] = self.end[unknown] = self.begin[unknown]

    def _rank(self, heads: Ints) -> Floats:
        slope = self.slope[heads]
        return np.where(np.isnan(slope), self.bound[heads], slope)

    def _append(self, heads: Ints, flows: Floats) -> int:
        """Append agendas to the store, which doubles when it is full; return where they begin."""
        at, self._used = self._used, self._used + len(heads)
        if self._used > len(self.agenda):
            more = max(self._used, 2 * len(self.agenda))
            self.agenda = np.concatenate([self.agenda, np.empty(more, dtype=np.int64)])
            self.agenda_flow = np.concatenate([self.agenda_flow, np.empty(more)])
        self.agenda[at : self._used] = heads
        self.agenda_flow[at : self._used] = flows
        return at


def _stage(level: Level) -> Stage:
    order = np.argsort(level.edge_from, kind="stable")
    to, share = level.edge_to[order], level.share[order]
    degree = np.bincount(level.edge_from, minlength=len(level.rows))
    first = np.cumsum(degree) - degree
    menu_of = np.empty(len(level.rows), dtype=np.int64)
    edges: list[Ints] = []
    menus: list[Ints] = []
    count = 0
    for size in np.unique(degree):
        alike = np.flatnonzero(degree == size)
        mine = first[alike][:, None] + np.arange(size)
        _, chosen, index = np.unique(np.hstack([to[mine], share[mine]]), axis=0, return_index=True, return_inverse=True)
        menu_of[alike] = count + index.reshape(-1)
        edges.append(mine[chosen].reshape(-1))
        menus.append(np.repeat(count + np.arange(len(chosen)), size))
        count += len(chosen)
    edge, edge_menu = np.concatenate(edges), np.concatenate(menus)
    return Stage(level.rows, menu_of, count, edge_menu, to[edge], share[edge], bool(degree.max(initial=0) > 1))


def _ranges(begin: Ints, end: Ints) -> Ints:
    """Return begin[0]..end[0]-1, begin[1]..end[1]-1, ... in one array."""
    size = end - begin
    shift = np.repeat(begin - np.cumsum(size) + size, size)
    return shift + np.arange(len(shift))
