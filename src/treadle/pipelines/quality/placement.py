"""Places the queries of a running pipeline on the workers of a cluster, and moves queries from workers short of CPU.

A query moves between two batches, or between two stages of a batch. It continues from its checkpoint on any worker, so
no row is lost or read twice. `decide.quality` decides which query moves. Stream-Economics sections 4 and 5.1.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.decide.assignment import workers_by_group
from treadle.decide.quality import Decision, Measured, moves
from treadle.decide.quality.room import HEADROOM
from treadle.enforce import Enforcer
from treadle.enforce.gate.stats import ANY
from treadle.enforce.place import PlaceKnob
from treadle.errors import ConfigError
from treadle.model import Bools, Floats
from treadle.pipelines.hops.running import Running
from treadle.pipelines.quality.flow import flow_of, may_shed
from treadle.pipelines.quality.promises import WINDOW, Promises
from treadle.pipelines.quality.query_work import COLD
from treadle.pipelines.spark.workers import Look, Table, Use, Worker, can_place, used

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("treadle.pipelines")

LOOK = 0.5
"""Seconds between polls of the list of workers."""
AGREE = 3
"""A move that just lets queries use more CPU is made after this many cycles in a row have found it useful."""
PAYS = 60.0
"""For these seconds after a move, no other move is made just to use more CPU, so that the first can take effect."""
UNKNOWN = 1.0
"""Cores that an instance is assumed to need before it is measured; afterwards, at most this many count as its need."""
SLOTS = 2
"""Number of slots of the gate for each core of the workers, with the option slots="auto"."""
FAIR = 0.5
"""Share of a worker's cores that counts as ours even if other processes use it: the kernel shares CPU evenly.
Without this limit, other processes would take the CPU that dropping rows frees, and still more would be dropped."""


SHORT = "its worker has too little CPU for all minima"
"""The reason given for a move by Alg. 2."""
ASSIGNED = "it was assigned"
"""The reason given for a move by the run's `assign`."""


class Moved(NamedTuple):
    """A query's move from one worker to another, at a `time` (monotonic); `origin` is empty for its first placement."""

    time: float
    hop: str
    origin: str
    target: str
    why: str


@dataclass(frozen=True)
class PlacementOptions:
    """The `placement` argument of `start`, returned by `treadle.place`. Called with a run, it returns a `Placement`."""

    prefer: Mapping[str, Sequence[str]]
    instances: Mapping[str, int]

    def __call__(self, run: Running) -> Placement:
        if not can_place(run.spark):
            raise ConfigError("the session can't place queries", where="spark", remedy="use treadle.cluster_session")
        return Placement(run, Table(run.spark), self.prefer, self.instances)


def place(
    *, prefer: Mapping[str, Sequence[str]] | None = None, instances: Mapping[str, int] | None = None
) -> PlacementOptions:
    """Put each query of a pipeline on a worker of the cluster: `p.start(spark, placement=treadle.place())`.

    `prefer` maps a sink, or in layout `hops` any node, to the workers or hosts where its query runs while they have
    room. `instances` maps a sink or node to the number of workers that its query uses at once (default 1), each for an
    equal share of the partitions. The session must be made by `treadle.cluster_session`.
    """
    for name, count in (instances or {}).items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(
                f"'{name}' can't have {count!r}", where="instances", remedy="use a whole number from 1 on"
            )
    return PlacementOptions(dict(prefer or {}), dict(instances or {}))


class Placement(Promises):
    """Keeps the promises of a run, and decides on which workers of a cluster its queries run."""

    def __init__(
        self, run: Running, table: Table, prefer: Mapping[str, Sequence[str]], instances: Mapping[str, int]
    ) -> None:
        flow = flow_of(run.nodes, run.options.layout, {})
        queries = [flow.tasks[task] for task in flow.task_of.tolist()]
        for where, names in (("prefer", prefer), ("instances", instances)):
            for name in names.keys() - set(queries):
                remedy = f"use one of {', '.join(queries)}"
                raise ConfigError(f"'{name}' is not a query of this run", where=where, remedy=remedy)
        super().__init__(run, instances)
        self.period = min(LOOK, self._cycle)
        self._names = [self.flow.tasks[task] for task in self.flow.task_of.tolist()]
        self.moved: list[Moved] = []
        self._sheds = may_shed(run.nodes)
        self._set_slots = run.set_slots if run.options.slots == "auto" and not run.in_real_time else None
        self._gate = run.gate
        self._gate.seat([0] * self._gate.slots, 1)  # until a worker is known
        self._grouped: list[int] = []
        """The worker of each group of the gate's slots."""
        self._table = table
        self._knob = Enforcer(PlaceKnob(table))
        self._prefer = [tuple(prefer.get(name, ())) for name in self._names]
        self._at = np.full(len(self._names), -1)
        self._needs = np.full(len(self._names), UNKNOWN)
        self._warm_at = np.full(len(self._names), COLD)
        self._cold_for = np.full(len(self._names), WINDOW + 1)
        self._ids: list[str] = []
        self._look_at: deque[Look] = deque(maxlen=WINDOW + 1)
        self._rows: deque[Floats] = deque(maxlen=WINDOW + 1)
        self._use = Use(np.empty(0), np.empty(0), np.zeros(len(self._names)))
        self._around = 0.0
        self._wish: tuple[int, int] | None = None
        self._wished = 0

    @cached_property
    def _queries(self) -> list[str]:
        """By instance: the Spark id of its query. Read after all queries have started."""
        return [str(self._hops[name].query.id) for name in self._names]  # type: ignore[union-attr]

    @property
    def _cpu_measured(self) -> bool:
        return True

    @property
    def can_shed(self) -> bool:
        return self._sheds and super().can_shed

    def shed(self, rows: DataFrame, producer: str, consumer: str) -> DataFrame:
        return super().shed(rows, producer, consumer) if self._sheds else rows

    def measure(self, now: float) -> Measured | None:
        if now - self._around >= LOOK:
            self._around = now
            self._look_around(now)
        too_early = self._looks and now - self._looks[-1][0] < self._cycle - self.period / 2
        unplaced = (self._at < 0).any()  # there is no worker yet
        return None if too_early or unplaced else super().measure(now)

    def carry_out(self, decision: Decision, now: float) -> None:
        super().carry_out(decision, now)
        self._rearrange(now, decision)

    def move(self, hop: str, worker: str, now: float, why: str = "requested") -> None:
        """Move the query `hop`, or one of its instances, to another worker from its next stage on.

        `worker` is the name or the host of a worker.
        """
        found = [number for number in self._living() if worker in self._called(number)]
        if hop not in self._names or not found:
            raise ConfigError(
                f"'{hop}' can't move to '{worker}'", where="placement", remedy="use names from the status"
            )
        there = [instance for instance, name in enumerate(self._names) if name == hop]
        if self._assigned().keys() & set(there):
            remedy = 'change the assignment, or set assign="none"'
            why = f"'{hop}' can't move: an assignment has chosen its worker"
            raise ConfigError(why, where="placement", remedy=remedy)
        self._go(next((each for each in there if self._at[each] != found[0]), there[0]), found[0], now, why)

    def close(self) -> None:
        self._knob.restore()
        super().close()

    def status(self) -> dict[str, Any]:
        """Return the status of the promises, and also the workers with their use and their hops, and all moves so far.

        `warming` names the queries whose instances have moved and have not reached their minimum yet.
        """
        workers: dict[str, Any] = {}
        for number in self._living():
            worker = self._worker(number)
            here = [name for name, at in zip(self._names, self._at.tolist(), strict=True) if at == number]
            known = number < len(self._use.cores)
            own = float(self._use.cpu[self._at == number].sum())
            workers[self._name_of(number)] = {
                "host": worker.host,
                "group": self._grouped.index(number) if number in self._grouped else None,
                "cores": round(float(self._use.cores[number]), 3) if known else worker.cores,
                "used": round(own, 3),
                "used_by_others": round(float(self._use.others[number]), 3) if known else None,
                "hops": here,
            }
        moves = [each._asdict() for each in self.moved]
        warming = [self._names[instance] for instance in self.controller.warming]
        return {**super().status(), "workers": workers, "moves": moves, "warming": warming}

    # ------------------------------------------------------------ measuring

    def _look(self) -> tuple[float, Floats]:
        now, counters = super()._look()
        self._look_at.append(self._table.look(now))
        self._rows.append(np.array([self._hops[name].tuples_in for name in self._names], dtype=np.float64))
        return now, counters

    def _measured(self, now: float, on_average: Floats) -> Measured:
        """Return the measurements of `Promises`, but with CPU and workers as reported by the executors."""
        seen = super()._measured(now, on_average)
        first, last = self._look_at[0], self._look_at[-1]
        copies = self.flow.copies[self.flow.task_of]
        use = self._instances_use(first, last)
        use = self._use = use._replace(cpu=np.where(self._are_cold(), 0.0, use.cpu))
        if not self._sheds:  # then kept rows are not counted
            taken = (self._rows[-1] - self._rows[0]) / max(last.time - first.time, 1e-9)
            seen = seen._replace(in_rate=taken / copies)
        own = np.bincount(self._at, weights=use.cpu, minlength=len(use.cores))
        return seen._replace(
            cpu=use.cpu,
            worker=self._at.copy(),
            busy=_kept(use) + own,
            cores=HEADROOM * use.cores,
            most=self._most(),
        )

    def _instances_use(self, first: Look, last: Look) -> Use:
        """CPU use between two samples. Each instance has an equal share of its query's CPU, as of the partitions.

        So `cpu` of the result is by instance, not by query.
        """
        ids = list(dict.fromkeys(self._queries))
        use = used(first, last, self._ids, ids)
        by_query = use.cpu[[ids.index(query) for query in self._queries]]
        return use._replace(cpu=by_query / self.flow.copies[self.flow.task_of])

    def _are_cold(self) -> Bools:
        """By instance: whether the window includes its first batches on its worker, in which the JVM compiles code."""
        batches = np.array([self._hops[name].batches for name in self._names])
        self._cold_for = np.where(batches < self._warm_at, WINDOW + 1, np.maximum(self._cold_for - 1, 0))
        cold: Bools = self._cold_for > 0
        return cold

    # ------------------------------------------------------------ placing

    def _look_around(self, now: float) -> None:
        """Detect workers that were added or lost; place instances that were assigned, or have no living worker."""
        look = self._table.look(now)
        new = [name for name in look.workers if name not in self._ids]
        gone = [name for name in self._ids if not look.workers[name].lives and self._latest.workers[name].lives]
        self._latest = look
        self._ids += new
        for name in new:
            log.info("worker '%s' was added", look.workers[name].name, extra={"worker": name})
        for name in gone:
            log.warning("worker '%s' was lost", look.workers[name].name, extra={"worker": name})
        living = self._living()
        if living and (new or gone):
            self._seat(living)
        for instance, worker in self._assigned().items():
            self._go(instance, worker, now, ASSIGNED)
        homeless = [n for n, at in enumerate(self._at.tolist()) if at < 0 or not self._worker(at).lives]
        if homeless and living:
            self._house(homeless, living, now)

    _latest = Look(0.0, {}, {})

    def _seat(self, living: Sequence[int]) -> None:
        """Make each living worker a group of the gate's slots."""
        self._grouped = workers_by_group(self._grouped, living)
        if self._set_slots is None:
            self._gate.seat(sorted(slot % len(living) for slot in range(self._gate.slots)), len(living))
            return
        cores = [self._worker(number).cores for number in self._grouped]
        self._set_slots(SLOTS * sum(cores))
        self._gate.seat([group for group, count in enumerate(cores) for _ in range(SLOTS * count)], len(living))

    def _assigned(self) -> dict[int, int]:
        """By instance: the worker of its query's group. Further instances of a query get the workers after it."""
        workers, groups = self._grouped, self._gate.groups
        found, copies = {}, Counter[str]()
        for instance, name in enumerate(self._names):
            group = groups.get(self._hops[name].id, ANY) if name in self._hops else ANY
            if ANY < group < len(workers):
                found[instance] = workers[(group + copies[name]) % len(workers)]
                copies[name] += 1
        return found

    def _house(self, homeless: Sequence[int], living: Sequence[int], now: float) -> None:
        """Put each of these instances on a preferred worker with enough CPU, else on the worker with most CPU left.

        Instances of higher priority come first (section 4).
        """
        priority = self.flow.priority[self.flow.task_of]
        order = sorted(homeless, key=lambda instance: -priority[instance])
        free = self._free()[living]
        for instance in set(range(len(self._at))) - set(homeless):
            free[living.index(int(self._at[instance]))] -= self._needs[instance]
        wishes = [[living.index(n) for n in living if self._called(n) & set(self._prefer[i])] for i in order]
        for instance, number in zip(order, moves.place(self._needs[order], free, wishes).tolist(), strict=True):
            why = "most of its CPU is free" if self._at[instance] < 0 else "its worker was lost"
            self._go(instance, living[number], now, why)

    def _free(self) -> Floats:
        """By worker: the cores that other processes leave for our queries; all of them before the first measurement."""
        look, first = self._latest, self._look_at[0] if self._look_at else self._latest
        return _room(self._instances_use(first, look))

    def _rearrange(self, now: float, decision: Decision) -> None:
        """Make the moves that the controller has decided by Alg. 2, unless an assignment decides where queries run.

        If there are none, and no recent move is still settling, make a move that just lets queries use more CPU, once
        `AGREE` cycles in a row have found the same one.
        """
        whole = np.minimum(decision.whole[self.flow.task_of], self._most())
        minimum = self.flow.minimum[self.flow.task_of]
        self._needs = np.where(whole > 0.0, np.minimum(minimum * whole, UNKNOWN), self._needs)
        if self._assigned():
            return
        for move in decision.moves:
            others = np.isin(np.arange(len(decision.free)), self._living()) & (
                np.arange(len(decision.free)) != move.origin
            )
            wishes = [n for n in self._living() if self._called(n) & set(self._prefer[move.instance])]
            target = moves.best_worker(decision.free, float(self._needs[move.instance]), others, wishes)
            self._go(move.instance, move.target if target is None or not wishes else target, now, SHORT)
        paying = any(move.origin and now - move.time < PAYS for move in self.moved[-1:])
        if decision.moves or paying or self.controller.doubtful or self.controller.warming or self._cold_for.any():
            self._wish, self._wished = None, 0
            return
        found = moves.relief(whole, np.minimum(minimum * whole, whole), self._at, _room(self._use))
        wish = None if found is None else found[:2]
        self._wished = self._wished + 1 if wish == self._wish and wish is not None else int(wish is not None)
        self._wish = wish
        if found is not None and self._wished >= AGREE:
            self._go(found[0], found[1], now, f"it can use {found[2]:.2f} cores more there")
            self._wish, self._wished = None, 0

    def _most(self) -> Floats:
        most: Floats = np.maximum(self._use.cores[self._at], 1e-9)
        return most

    def _go(self, instance: int, target: int, now: float, why: str) -> None:
        origin = int(self._at[instance])
        if origin == target:
            return
        self._at[instance] = target
        self._warm_at[instance] = self._hops[self._names[instance]].batches + COLD
        places: dict[str, list[str]] = {query: [] for query in self._queries}
        for query, at in zip(self._queries, self._at.tolist(), strict=True):
            places[query] += [self._ids[at]] if at >= 0 else []
        wanted = np.array([",".join(ids) or None for ids in places.values()], dtype=np.object_)
        self._knob.apply(self._knob.diff(tuple(places), wanted))
        if origin >= 0:
            self.controller.moved(instance, now)
            self._on_time.restart(int(self.flow.task_of[instance]), now)
        before = self._name_of(origin) if origin >= 0 else ""
        self.moved.append(Moved(now, self._names[instance], before, self._name_of(target), why))
        log.info(
            "query '%s' moves %sto worker '%s': %s",
            *(self._names[instance], f"from '{before}' " if before else "", self._name_of(target), why),
            extra={"hop": self._names[instance], "worker": self._name_of(target)},
        )

    def _living(self) -> list[int]:
        return [number for number in range(len(self._ids)) if self._worker(number).lives]

    def _worker(self, number: int) -> Worker:
        return self._latest.workers[self._ids[number]]

    def _called(self, number: int) -> set[str]:
        worker = self._worker(number)
        return {worker.name, worker.host, self._name_of(number)}

    def _name_of(self, number: int) -> str:
        """The name of a worker, with its id if another living worker has the same name."""
        worker = self._worker(number)
        same = [n for n in self._living() if self._worker(n).name == worker.name and n != number]
        return f"{worker.name}#{worker.id}" if same else worker.name


def _kept(use: Use) -> Floats:
    """By worker: the cores that are left to other processes: as many as they use, at most the share `1 - FAIR`."""
    return np.minimum(use.others, (1.0 - FAIR) * use.cores)


def _room(use: Use) -> Floats:
    """By worker: the cores available to our queries."""
    room: Floats = HEADROOM * use.cores - _kept(use)
    return room
