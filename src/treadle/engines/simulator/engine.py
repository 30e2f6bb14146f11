"""The simulator as an engine: it has a topology, metrics and knobs.

`advance` moves virtual time on. `SimulatedClock.sleep` calls it, so the loop, the policies and the enforcers are the
same as on a real engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from treadle.enforce import Knob
from treadle.engines.simulator import arrivals, state
from treadle.engines.simulator.kernel import cells, event_loop
from treadle.engines.simulator.knobs import knobs_of
from treadle.engines.simulator.layout import lay_out
from treadle.engines.simulator.scenario import Mode, Scenario, queries
from treadle.engines.simulator.spec import MOST_SECONDS
from treadle.engines.simulator.state import State
from treadle.errors import ConfigError
from treadle.model import Floats, Ints, Topology
from treadle.values import Sample

GRID_POINTS = 400
LEAST_SECONDS = 0.001
Progress = Callable[[float], None]
"""Called with the share of the scenario's virtual time that has passed, 0 to 1."""


@dataclass(frozen=True)
class Results:
    """All results that left the system: for each its time, age, number of tuples, and index of the sink instance."""

    time: Floats
    latency: Floats
    mass: Floats
    row: Ints


class Simulator:
    """One scenario in one mode of execution, at one moment of virtual time."""

    name = "simulator"
    in_process = True
    OFFERS: ClassVar[frozenset[str]] = frozenset(
        {"queue", "external_queue", "output_queue", "tuples_in", "tuples_out"}
        | {"cpu_time", "run_wait", "head_age", "mean_age"}
    )
    """Metrics that it can measure, over all modes."""
    KNOWN: ClassVar[frozenset[str]] = frozenset({"cost", "selectivity"})
    """Metrics that it also offers in scenarios with `known = true`."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        mode: Mode | None = None,
        seconds: float | None = None,
        seed: int | None = None,
    ) -> None:
        execution = scenario.execution
        self.seconds = scenario.seconds if seconds is None else seconds
        self.mode: Mode = mode or execution.mode
        seed = scenario.seed if seed is None else seed
        _check(scenario, self.seconds, seed)
        self.scenario = scenario = scenario.model_copy(update={"seed": seed})  # plans are drawn from the seed too
        self.per_unit = self.mode == "cooperative" and execution.period == 0
        layout = lay_out(queries(scenario), self.name)
        self._topology = layout.topology
        self._helper_of = layout.helper_of
        self._rows = np.concatenate([np.arange(len(layout.topology)), np.flatnonzero(layout.helper_of >= 0)])
        self._order_is_stale = True
        self._results: list[Results] = []
        self._sampled_at = 0.0
        self.drained = False
        self.state = state.create(
            layout.nodes,
            _arrivals(scenario, layout.feeds, self.seconds, seed),
            processors=execution.processors,
            cooperative=self.mode == "cooperative",
            fluid=execution.fluid,
            per_unit=self.per_unit,
            batch=execution.batch,
            switch_cost=execution.switch_cost,
            time_slice=execution.time_slice,
            rr_slice=execution.rr_slice,
            delay=execution.delay,
            grid=self.seconds / GRID_POINTS,
            grid_points=GRID_POINTS + 1,
            trace_rows=1024 if scenario.trace else 0,
            seed=seed,
        )
        self.state.tally[cells.TRACED] = scenario.trace  # the first row: time zero, all empty
        self._knobs = knobs_of(self)

    # ------------------------------------------------------------ engine

    @property
    def offers(self) -> frozenset[str]:
        names = set(self.OFFERS)
        if self.mode == "cooperative":
            names.remove("run_wait")
        if (self._helper_of < 0).all():
            names.remove("output_queue")
        return frozenset(names | self.KNOWN if self.scenario.execution.known else names)

    def topology(self) -> Topology:
        return self._topology

    def sample(self, wanted: frozenset[str]) -> Sample:
        columns = {name: _COLUMNS[name](self) for name in wanted & self.offers}
        clock = self.state.clock
        results, seconds = clock[cells.OUTPUT_SUM], self.now - self._sampled_at
        totals = {
            "total_queue": float(clock[cells.TOTAL]),
            "output_rate": float(results / seconds) if seconds > 0 else np.nan,
            "latency": float(clock[cells.LATENCY_SUM] / results) if results > 0 else np.nan,
        }
        clock[cells.OUTPUT_SUM] = clock[cells.LATENCY_SUM] = 0.0
        self._sampled_at = self.now
        return Sample(self.now, columns, totals)

    def knobs(self) -> Mapping[str, Knob]:
        return self._knobs

    # ------------------------------------------------------------ virtual time

    @property
    def now(self) -> float:
        return float(self.state.clock[cells.NOW])

    def advance(self, until: float) -> bool:
        """Advance virtual time to `until`. True: it stopped earlier, because an operator must be chosen (period 0)."""
        if self._order_is_stale and self.mode == "cooperative":
            self._sort()
        while True:
            code = event_loop.advance(self.state, until)
            if code == cells.POOL_FULL:
                self.state = state.grown(self.state)
            elif code == cells.RESULTS_FULL:
                self._flush()
            elif code == cells.TRACE_FULL:
                more = np.concatenate([self.state.trace, np.zeros_like(self.state.trace)])
                self.state = self.state._replace(trace=more)
            else:
                self.drained = code == cells.DRAINED
                return bool(code == cells.DECIDE)

    def decided(self) -> None:
        """Note that the operator was chosen for which `advance` stopped; this takes the scenario's `schedule_cost`."""
        self.state.tally[cells.DECIDED] = 1
        self.spend(self.scenario.execution.schedule_cost)

    def spend(self, seconds: float) -> None:
        """Keep all processors busy for this long, as Haren's scheduling task does."""
        for name in ("until", "slice_end", "accounted"):
            self.state.processor[name] += seconds
        event_loop.pass_time(self.state, self.now + seconds)

    def reorder(self) -> None:
        """Mark the order of operators as stale, since knobs have changed; running operators may be preempted."""
        self._order_is_stale = True
        self.state.tally[cells.WOKEN] = 1

    @property
    def processors(self) -> int:
        return int(self.state.tally[cells.PROCESSORS])

    def set_delay(self, delay: float) -> None:
        """Set Haren's d: operators that did not run for `delay` seconds get a turn; 0 for never."""
        self.state.clock[cells.DELAY] = delay

    def set_batch(self, batch: int) -> None:
        if batch < 1:
            raise ConfigError(f"a batch can't be {batch}", remedy="use at least 1")
        self.state.tally[cells.BATCH] = batch

    def set_processors(self, processors: int) -> None:
        if not 1 <= processors <= cells.MOST_PROCESSORS:
            raise ConfigError(f"can't run on {processors} processors", remedy=f"use 1 to {cells.MOST_PROCESSORS}")
        s = self.state
        s.tally[cells.HEADROOM] += (processors - self.processors) * state.most_made(s.node)
        for p in range(processors, int(s.tally[cells.PROCESSORS])):
            if s.processor[p]["running"] >= 0:
                event_loop.release(s, p)
        s.tally[cells.PROCESSORS] = processors
        self._order_is_stale = True

    # ------------------------------------------------------------ what came out

    @property
    def results(self) -> Results:
        self._flush()
        names = ("time", "latency", "mass", "row")
        whole = Results(*(np.concatenate([getattr(part, name) for part in self._results]) for name in names))
        self._results = [whole]
        return whole

    @property
    def trace(self) -> Floats:
        """One line per event: time, queue of each node (main threads, then helpers), their total, all output so far."""
        s = self.state
        rows = s.trace[: s.tally[cells.TRACED]]
        queues = rows[:, 1:-1]
        return np.column_stack([rows[:, 0], queues, queues.sum(axis=1), rows[:, -1]])

    @property
    def memory(self) -> tuple[Floats, Floats]:
        """(Times on an even grid, number of queued tuples at each)."""
        size = int(self.state.tally[cells.GRID_AT])
        return np.arange(size) * self.state.clock[cells.GRID], self.state.memory[:size].copy()

    @property
    def oldest_waiting(self) -> float:
        """The age in seconds of the oldest queued tuple; 0 if none is queued."""
        heads = self.state.node["head"]
        return float(self.now - self.state.item["born"][heads[heads >= 0]].min(initial=self.now))

    @property
    def counters(self) -> dict[str, float]:
        """Totals since the start, for reports and for the invariants that tests check."""
        s, c, t = self.state, self.state.clock, self.state.tally
        return {
            "now": self.now,
            "events": float(t[cells.EVENTS]),
            "switches": float(t[cells.SWITCHES]),
            "queued": float(c[cells.TOTAL]),
            "queue_mean": float(c[cells.AREA] / self.now) if self.now > 0 else 0.0,
            "queue_peak": float(c[cells.PEAK]),
            "dropped": float(s.node["dropped"].sum()),
            "busy": float(s.node["busy"].sum()),
        }

    @property
    def nodes(self) -> dict[str, Ints | Floats]:
        """By node, main threads first, then helpers: counts of tuples, and seconds on a processor or waiting for it."""
        s = self.state
        names = ("arrived", "dropped", "done", "queued", "emitted_mass", "done_mass", "queued_mass", "busy", "waited")
        return {name: s.node[name].copy() for name in names}

    def _flush(self) -> None:
        s = self.state
        size = int(s.tally[cells.RESULTS])
        new = s.result[:size]
        rows = self._rows[new["node"]]
        self._results.append(Results(new["time"].copy(), new["time"] - new["born"], new["mass"].copy(), rows))
        s.tally[cells.RESULTS] = 0

    def _sort(self) -> None:
        """Sort each processor's nodes by rank, best first. A helper has its main thread's rank and comes before it."""
        s = self.state
        count = int(s.tally[cells.PROCESSORS])
        mains = np.arange(len(self._topology))
        for main in mains[self._helper_of >= 0]:
            s.node["owner"][self._helper_of[main]] = s.node["owner"][main]
            s.node["rank"][self._helper_of[main]] = s.node["rank"][main]
        owner = s.node["owner"] % count
        is_main = np.arange(len(owner)) < len(mains)
        s.order[:] = np.lexsort((is_main, -s.node["rank"], owner))
        ends = np.searchsorted(owner[s.order], np.arange(1, count + 1))
        mine = s.processor[:count]
        mine["first"], mine["last"] = np.concatenate([[0], ends[:-1]]), ends
        mine["cursor"] = mine["catch_up"] = mine["first"]
        self._order_is_stale = False


def _check(scenario: Scenario, seconds: float, seed: int) -> None:
    """Raise an error for wrong seconds or a wrong seed, which a caller may set instead of the file."""
    if not (scenario.warm_up < seconds <= MOST_SECONDS and seconds >= LEAST_SECONDS):
        least = f"{scenario.warm_up:g}, which is the warm-up" if scenario.warm_up else f"{LEAST_SECONDS:g}"
        raise ConfigError(
            f"can't run for {seconds:g} seconds",
            where=scenario.where,
            remedy=f"use more than {least}, and at most {MOST_SECONDS}",
        )
    if seed < 0:
        raise ConfigError(f"can't draw from seed {seed}", where=scenario.where, remedy="use 0 or more")


def _arrivals(scenario: Scenario, feeds: list[arrivals.Feed], seconds: float, seed: int) -> tuple[Floats, Ints]:
    try:
        return arrivals.draw(feeds, seconds, seed, scenario.folder)
    except ConfigError as error:
        place = f"{scenario.where}: {error.where}" if scenario.where else error.where
        raise ConfigError(error.message, where=place, remedy=error.remedy) from None


class SimulatedClock:
    """A clock for the control loop; its `sleep` advances the simulation."""

    def __init__(self, simulator: Simulator, progress: Progress | None = None) -> None:
        self._simulator = simulator
        self._progress = progress

    def now(self) -> float:
        return self._simulator.now

    def sleep(self, seconds: float) -> None:
        self._simulator.advance(self._simulator.now + seconds)
        self._simulator.spend(self._simulator.scenario.execution.schedule_cost)
        if self._progress is not None:
            self._progress(min(self._simulator.now / self._simulator.seconds, 1.0))


# ---------------------------------------------------------------- what it offers


def _mains(values: Callable[[State], Floats | Ints]) -> Callable[[Simulator], Floats]:
    return lambda sim: values(sim.state)[: len(sim._topology)].astype(np.float64)


def _head_age(sim: Simulator) -> Floats:
    s = sim.state
    head = s.node["head"][: len(sim._topology)]
    return np.where(head >= 0, sim.now - s.item["born"][head], 0.0)


def _mean_age(sim: Simulator) -> Floats:
    s, n = sim.state, len(sim._topology)
    mass = s.node["queued_mass"][:n]
    mean_born: Floats = np.divide(s.node["born_sum"][:n], mass, out=np.full(n, sim.now), where=mass > 0)
    return np.asarray(sim.now - mean_born)


def _output_queue(sim: Simulator) -> Floats:
    return np.where(sim._helper_of >= 0, sim.state.node["queued_mass"][sim._helper_of], 0.0)


def _run_wait(sim: Simulator) -> Floats:
    s, n = sim.state, len(sim._topology)
    waiting = np.where(s.node["status"] == cells.READY, sim.now - s.node["ready_since"], 0.0)
    return np.asarray((s.node["waited"] + waiting)[:n])


_COLUMNS: Mapping[str, Callable[[Simulator], Floats]] = {
    "queue": _mains(lambda s: s.node["queued_mass"]),
    "external_queue": lambda sim: np.where(sim._topology.is_source, _COLUMNS["queue"](sim), 0.0),
    "output_queue": _output_queue,
    "tuples_in": _mains(lambda s: s.node["done_mass"]),
    "tuples_out": _mains(lambda s: s.node["emitted_mass"]),
    "cpu_time": _mains(lambda s: s.node["busy"]),
    "cost": _mains(lambda s: s.node["cost"]),
    "selectivity": _mains(lambda s: s.node["selectivity"]),
    "head_age": _head_age,
    "mean_age": _mean_age,
    "run_wait": _run_wait,
}
