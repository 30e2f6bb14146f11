"""A running Spark application as an engine of the control loop: its topology, what is measured, and what can be turned.

Nothing in the application is changed. A round costs a question to an agent in each JVM, where that may not be loaded a
thread dump, and one small file for each thread; no HTTP: what the MBeans say, and without the agent Spark's UI, comes
from threads of their own. Lachesis section 4: an SPE driver.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

import numpy as np

from treadle.enforce import Knob, kernel
from treadle.engines.spark.agent.agents import Agents
from treadle.engines.spark.application import Application, Process, is_alive
from treadle.engines.spark.counters.batches import BatchReading
from treadle.engines.spark.counters.columns import OFFERS, LiveColumns
from treadle.engines.spark.counters.handover import Counters
from treadle.engines.spark.queries.rest import Directory, Rest
from treadle.engines.spark.slow_poller import SlowPoller
from treadle.engines.spark.threads.idle_queues import Doing, Estimate, doing, realigned
from treadle.engines.spark.threads.layout import WHOLE, Layout, Place, Rows
from treadle.engines.spark.threads.naming import COMPILERS, NETWORK
from treadle.engines.spark.threads.thread_table import ThreadTable
from treadle.errors import TargetGone, TreadleError
from treadle.jvm import JavaThread
from treadle.linux.thread_times import Threads, ThreadTimes, Times
from treadle.model import Bools, Floats, Ints, Role, Topology
from treadle.observe.graph import TRACE
from treadle.values import Sample

WAITING = 2.0
"""Seconds for which threads that have no place yet are looked at in every round."""
FIRST = 1.0
"""Seconds for which the first look waits for the agents."""
RARELY = 10.0
"""Seconds after which threads are dumped where agents tell of them, and of what tasks do: the JVM's own may be new."""
STALE = 3
"""Periods after which counters that have not come anew say nothing of what waits."""
BLIND = 3.0
"""Seconds after which Kafka's own figures are read where tasks do not tell how far they are."""
OTHERS = 2.0
"""Seconds between two looks at the counters of threads that are no task's main, of which there are many."""
FROM_BEANS = frozenset({"external_queue", "tuples_in"})
FROM_AGENT = OFFERS - FROM_BEANS - {"queue"}
"""What only the counters inside of running tasks tell; without them a queue is an estimate."""


class SparkEngine:
    """`priorities` and `latency_goals` are patterns of query names and what each is worth, or wants, in seconds.

    The first pattern that fits counts. `knobs` are what can be turned, by default all that the kernel and this user's
    rights allow. `mbeans=False` offers none of Kafka's lag and positions, and loads no Jolokia into the application;
    with `loads=False` they are known only where one is there already. With `agent` Treadle's own is loaded, for as long
    as this is open. `beans_period` are the seconds between two reads of the MBeans, `patience` those that a round may
    wait for the UI to say whose a new stage is. `dump_period` are the seconds after which it is seen what tasks do,
    also without a sign of a change, `period` those between two rounds, before each of which the agents look. `admits`
    says of each process whether it may be looked at and scheduled. `counts_period` are the seconds between two readings
    of the counters inside of running tasks, which need the agent. Where these tell how far sources are, the MBeans are
    read only if they are needed for what an application as a whole does (`needs_beans`). It stops the JVM for a moment
    to see what tasks do, so that is seen only while the rows of some task are not counted, or `busy` is needed
    (`needs_busy`).
    """

    OFFERS: ClassVar[frozenset[str]] = frozenset({"cpu_time", "run_wait", "queue"}) | FROM_BEANS | FROM_AGENT

    def __init__(
        self,
        application: Application,
        *,
        name: str = "spark",
        priorities: Mapping[str, float] | None = None,
        latency_goals: Mapping[str, float] | None = None,
        knobs: Mapping[str, Knob] | None = None,
        mbeans: bool = True,
        loads: bool = True,
        agent: bool = True,
        beans_period: float = 1.0,
        patience: float = 0.02,
        dump_period: float = 1.0,
        period: float = 0.05,
        admits: Callable[[Process], bool] = lambda _: True,
        compilers: bool = False,
        counts_period: float = 0.2,
        needs_beans: bool = False,
        needs_busy: bool = False,
    ) -> None:
        self.name = name
        self.application = application
        self.offers = offered(beans=mbeans, agent=agent)
        self._mbeans, self._needs_beans = mbeans, needs_beans
        self._sources_known = math.inf
        """When it was last so that the offsets of all Kafka sources were known."""
        rest = Rest(application.ui)
        rest.application = "" if application.local else application.id
        self._directory = Directory(rest, patience=patience)
        shown = {COMPILERS: compilers, NETWORK: not application.local}
        left_out = [service for service, is_shown in shown.items() if not is_shown]
        self._layout = Layout(
            name, self._directory, priorities or {}, latency_goals=latency_goals or {}, left_out=left_out
        )
        self._knobs = knobs
        self._pulse = SlowPoller(application, beans_period, loads=loads, admits=admits)
        self._dump_period = dump_period
        self._agents = Agents(loads=agent, period=period, stacks=dump_period, counts=counts_period)
        self._live = LiveColumns(self._agents, self._directory)
        self._counted = 0
        """How many readings of counters were passed on."""
        self._took = False
        """True if an agent reported new counters after the last read of CPU times."""
        self._needs_busy, self._all_counted = needs_busy, False
        self._heard = 0
        """Of what the agents have said, how much was passed on."""
        self._agents.keep(self._pids)
        self._roster = ThreadTable(self._agents)
        self._times, self._times_of_others = ThreadTimes(), ThreadTimes()
        self._mains: tuple[_Own, Times] | None = None
        self._others: _Evened | None = None
        self._threads: dict[int, list[JavaThread]] = {}
        self._stacks = 0
        self._settled = -math.inf
        self._seen: list[object] = []
        self._calm: tuple[object, ...] = ()
        self._calm_until = -math.inf
        self._facts: object = None
        self._topology = Topology((), ())
        self._rows = Rows((), (), ())
        self._own = _owned(self._rows, self._topology)
        self._batch_rows: dict[str, int] = {}
        self._cpu, self._wait, self._taken = Counters(), Counters(), Counters()
        self._estimate = Estimate()
        self._found: list[Doing] | None = None
        self._at_dump: tuple[float, _Own, Floats] | None = None
        """When it was last seen what tasks do: what the mains had used and waited for by then."""
        self._queue: Floats = np.empty(0)
        self._beside: Floats = np.empty(0)
        """By row CPU seconds of all threads for each one that Spark counts, which leaves out Python workers."""
        self._kafka: tuple[object, object, Floats, Floats] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Read no more. The application stays as it is."""
        self._pulse.close()
        self._agents.close()
        self._roster.close()
        self._directory.close()
        self._times.close()
        self._times_of_others.close()

    # ------------------------------------------------------------ engine

    @property
    def in_process(self) -> bool:
        """Whether nobody has to be asked: agents tell of all, and files of the kernel are read."""
        return bool(self._threads) and self._directory.told and self._roster.is_told(self._pids)

    def news(self) -> bool:
        """Whether a look is due: figures of Kafka are not looked at alone, but with what tasks do."""
        now = time.monotonic()
        self._agents.look()
        if now < self._calm_until and self._facets() == self._calm:
            return False
        if self._is_due(now, self._read_signs()) or self._agents.counted != self._counted:
            return True
        self._calm_down(now)
        return False

    @property
    def calm_until(self) -> float:
        """Until when there can be no news unless an agent speaks, which can be waited for by `fileno`."""
        return self._calm_until if self._facets() == self._calm else -math.inf

    def fileno(self) -> int:
        """What can be read from when an agent speaks."""
        return self._agents.fileno()

    def topology(self) -> Topology:
        """What runs now; a new version only if anything differs."""
        now, pulse, layout = time.monotonic(), self._pulse, self._layout
        if not self._threads:
            self._agents.settle(FIRST)
        self._agents.look()
        signs = self._read_signs()
        if not self._is_due(now, signs):
            self._take_counts()
            return self._topology
        self._threads = self._look(now)
        facts = (self._roster.version, self._directory.generation, pulse.workers)
        if facts != self._facts or now >= layout.ripens or (layout.waits and now - self._settled < WAITING):
            drivers = [process.pid for process in pulse.processes if process.driver]
            rows = layout.lay_out(self._threads, drivers, pulse.workers)
            if rows != self._rows or not self._topology.version:
                self._replace(rows)
        self._seen, self._facts = signs, facts
        if self._stacks != self._roster.stacks:
            self._stacks, self._found = self._roster.stacks, self._look_at_mains()
        self._take_counts()
        return self._topology

    def sample(self, wanted: frozenset[str]) -> Sample:
        """Of the topology that was last looked at. NaN: no thread, no Kafka, or nobody knows."""
        now = time.monotonic()
        columns: dict[str, Floats] = {}
        totals: dict[str, float] = {}
        estimated: dict[str, Bools] = {}
        mains = self._read_mains()
        if wanted & {"cpu_time", "run_wait"}:
            columns["cpu_time"], columns["run_wait"] = self._from_kernel(mains)
        for metric in wanted & FROM_AGENT & self.offers:
            columns[metric] = self._counted_lately(metric)
        if "batch_cost" in columns:
            columns["batch_cost"] *= self._beside
        if "tuples_out" in columns:  # a sink that is counted and has put out nothing is not one that is not counted
            trace = np.where(self._topology.is_sink, TRACE * self._counted_lately("tuples_in"), 0.0)
            columns["tuples_out"] += np.nan_to_num(trace)
        if "queue" in wanted:
            if self._found is not None:
                idle = self._idle(now, mains)
                self._queue = self._estimate.update(now, self._found, self._topology.edges, idle)
                self._found = None
            columns["queue"], estimated["queue"] = self._queues()
        if wanted & FROM_BEANS & self.offers:
            self._pulse.wants_beans = self._mbeans and (self._needs_beans or self._lacks_offsets(now))
            columns["external_queue"], columns["tuples_in"] = self._from_sources()
            # A consumer that has records left hears of no new ones: those are taken to arrive as before.
            estimated["external_queue"] = columns["external_queue"] > 0.0
            totals = {"output_rate": self._pulse.flow.rate, "total_queue": self._pulse.flow.waiting}
        taken = {metric: columns[metric] for metric in wanted & columns.keys()}
        return Sample(now, taken, totals, estimated, self._given())

    def _given(self) -> dict[str, Floats]:
        """Metrics of queries in micro-batches that are learnt from whole batches."""
        given = self._live.given if self._is_counted else {}
        if "cost" in given:
            given["cost"] *= self._beside
        return given

    @property
    def busy(self) -> Floats:
        """By row an estimate of what waits; above 0 also while a task is not done with its last row (`needs_busy`)."""
        return self._queue

    @property
    def batch_rows(self) -> Mapping[str, int]:
        """By run the row of each query that works in micro-batches."""
        return self._batch_rows

    @property
    def batches(self) -> Mapping[str, BatchReading]:
        """By run the last reading of each of them."""
        return self._live.batches

    def order_tasks(self, runs: tuple[str, ...]) -> None:
        """Whose tasks get the next free slot, until this is closed: those of the first run. Empty: as Spark has it."""
        self._agents.task_order = runs

    def cpu_seconds(self) -> float:
        """What all threads of the application that are scheduled have used so far, at this moment."""
        mains, others = self._times.sample(self._own.mains), self._read_others(time.monotonic())
        return float(np.nansum(mains.cpu_time) + np.nansum(others.cpu_time))

    @property
    def readings(self) -> int:
        """How often the counters of tasks were read."""
        return self._counted

    def read_counters_every(self, seconds: float) -> None:
        """From now on."""
        self._agents.counts = seconds

    @property
    def counted_at(self) -> float:
        """When tasks were last counted; NaN while none is."""
        return self._live.time

    @property
    def unplanned(self) -> frozenset[str]:
        """Queries at work whose plan is not known yet."""
        return self._layout.unplanned

    @property
    def processes(self) -> Sequence[Process]:
        """Those that there are now."""
        return self._pulse.processes

    @property
    def taken(self) -> tuple[float, float]:
        """Records that all Kafka consumers have taken, matched to their tasks or not, and when that was asked for.

        NaN while none is known.
        """
        return self._pulse.taken, self._pulse.asked

    def knobs(self) -> Mapping[str, Knob]:
        if self._knobs is None:
            self._knobs = _kernel_knobs()
        return self._knobs

    # ------------------------------------------------------------ looking

    def _read_signs(self) -> list[object]:
        pulse = self._pulse
        self._hear()
        signs = self._roster.signs(self._pids, self._layout.pooled)
        return [*signs, self._directory.generation, pulse.processes, pulse.workers]

    def _facets(self) -> tuple[object, ...]:
        """What tells of all news that come by themselves, and is quickly compared."""
        pulse = self._pulse
        agents = self._agents
        return (
            agents.generation,
            agents.sampled,
            agents.counted,
            self._directory.generation,
            pulse.processes,
            pulse.workers,
        )

    def _calm_down(self, now: float) -> None:
        """There is no news: until when there can be none but those that the facets tell of."""
        quiet = self._directory.told and self._roster.is_quiet(self._pids) and not self._agents.tries_again
        self._calm = self._facets()
        self._calm_until = self._roster.dumped + RARELY if quiet else now

    @property
    def _pids(self) -> list[int]:
        return [process.pid for process in self._pulse.processes]

    def _hear(self) -> None:
        """Pass on what the agents have said."""
        agents = self._agents
        agents.keep(self._pids)
        if agents.generation != self._heard:
            self._heard = agents.generation
            if (driver := agents.driver) is not None:
                self._directory.tell(driver.jobs.values(), driver.shuffles, driver.plans)
                if self.application.local:  # elsewhere what is taken here may leave from another host
                    self._pulse.selectivity = driver.selectivity
            else:
                self._directory.told = False
                self._pulse.selectivity = math.nan

    def _is_due(self, now: float, signs: list[object]) -> bool:
        """Whether to look: at a sign of a change, and at times without.

        Threads that have no place yet are looked at in every round, but not for ever.
        """
        layout, age = self._layout, now - self._roster.dumped
        if not layout.waits:
            self._settled = now
        hurry = not self._directory.told and (layout.hurries or (layout.waits and now - self._settled < WAITING))
        due = age >= (RARELY if self._roster.is_told(self._pids) else self._dump_period)
        waits = due and not self._roster.ask_for_dumps(now, self._pids)
        return hurry or waits or now >= layout.ripens or signs != self._seen

    def _look(self, now: float) -> dict[int, list[JavaThread]]:
        """The threads of all processes that are still there."""
        alive = [process.pid for process in self._pulse.processes if is_alive(process)]
        if not alive and self._pulse.ended:
            raise TargetGone("has ended", where=f"application '{self.application.name}'")
        return self._roster.look(now, alive)

    def _replace(self, rows: Rows) -> None:
        before = self._topology
        topology = Topology(rows.queries, rows.instances, before.version + 1)
        source = np.array([before.row_of.get(name, -1) for name in topology.ids], dtype=np.int64)
        for kept in (self._cpu, self._wait, self._taken, self._estimate):
            kept.realign(source)
        self._queue = realigned(self._queue, source)
        self._beside = np.ones(len(topology))
        self._rows, self._topology = rows, topology
        self._own, self._all_counted = _owned(rows, topology), False
        self._others = self._kafka = None
        self._batch_rows = {
            place.run: row
            for row, place in enumerate(rows.places)
            if place is not None and rows.instances[row].operators == (WHOLE,)
        }
        self._live.lay_out(rows.places)
        if self._found is not None:  # nobody has asked for it yet
            self._found = self._look_at_mains()
        self._roster.keep(self._layout.pooled)
        self._pulse.sources, self._pulse.wants_workers = self._layout.sources, self._layout.python

    # ------------------------------------------------------------ columns

    def _look_at_mains(self) -> list[Doing]:
        """What the main thread of each row was last found doing."""
        mains = {ref.tid: place for place, ref in self._layout.mains.items()}
        found: dict[Place | None, Doing] = {}
        for threads in self._threads.values():
            for thread in threads:
                if thread.tid in mains:
                    found[mains[thread.tid]] = doing(thread)
        return [found.get(place, Doing.UNKNOWN) for place in self._rows.places]

    def _idle(self, now: float, mains: Times) -> Floats:
        """Of each row with a main thread the part of the time since the last dump in which that had nothing to do."""
        own, before = self._own, self._at_dump
        busy = mains.cpu_time + mains.run_wait
        self._at_dump = (now, own, busy)
        idle = np.full(len(self._topology), np.nan)
        if before is not None and before[1] is own and now > before[0]:
            idle[own.rows[: len(busy)]] = np.clip(1.0 - (busy - before[2]) / (now - before[0]), 0.0, 1.0)
        return idle

    def _take_counts(self) -> None:
        """Take what running tasks have counted."""
        self._counted = self._agents.counted
        if self._live.take(self._pids):
            self._took = True
            self._all_counted = not np.isnan(self._live.column("tuples_in")[self._own.tasks]).any()
        enough = self._all_counted and self._is_counted and not self._needs_busy
        self._agents.stacks = 0.0 if enough else self._dump_period

    def _queues(self) -> tuple[Floats, Bools]:
        """Rows that wait, where they are counted, and else an estimate; which of them are one.

        What waits before a source is outside. A JVM whose threads get no CPU counts nothing either: what it said last
        does not hold for long.
        """
        if not self._is_counted:
            return self._queue.copy(), np.ones(len(self._queue), dtype=np.bool_)
        counted = self._live.column("queue")
        is_batched = ~np.isnan(self._live.column("cpu_time"))
        is_source = self._topology.is_source & ~np.isnan(self._live.column("tuples_in")) & ~is_batched
        # A row that was counted before is unknown for a moment, between two batches; it is not estimated.
        uncounted = np.isnan(counted) & np.isnan(self._live.column("tuples_in"))
        known = np.where(is_source & np.isnan(counted), 0.0, counted)
        unheard = is_batched & (counted > self._live.column("heard"))
        return np.where(uncounted, self._queue, known), uncounted | unheard

    def _counted_lately(self, metric: str) -> Floats:
        """What the agents say of it; nothing, once they say no more."""
        return self._live.column(metric) if self._is_counted else np.full(len(self._topology), np.nan)

    @property
    def _is_counted(self) -> bool:
        """Whether tasks have been counted lately."""
        return time.monotonic() - self._live.time <= max(0.5, STALE * self._agents.counts)

    def _read_mains(self) -> Times:
        """The CPU times of tasks, of the moment of their last counters: cost is the growth of one for the other's."""
        if self._mains is None or self._mains[0] is not self._own or self._took or not self._is_counted:
            self._mains = self._own, self._times.sample(self._own.mains)
            self._took = False
        return self._mains[1]

    def _read_others(self, now: float) -> Times:
        if self._others is None:
            self._others = _Evened(OTHERS)
        if self._others.is_due(now, 0.5 * self._dump_period):
            self._others.add(now, self._times_of_others.sample(self._own.others))
        return self._others.at(now)

    def _from_kernel(self, mains: Times) -> tuple[Floats, Floats]:
        """CPU time and wait; of all threads but the mains of tasks not in each round."""
        own, others = self._own, self._read_others(time.monotonic())
        of_batches = self._live.column("cpu_time")
        counted = ~np.isnan(of_batches)
        # Tasks of micro-batches come and go between two rounds: Spark itself adds up what they have used.
        mains_cpu = np.where(counted[own.rows[: len(own.mains)]], 0.0, mains.cpu_time)
        cpu = np.concatenate([mains_cpu, others.cpu_time])
        wait = np.concatenate([mains.run_wait, others.run_wait])
        used = self._cpu.add(own.all, cpu, own.rows)
        lately = self._counted_lately("cpu_time")
        works = counted & (lately > 0.0)
        self._beside = 1.0 + np.divide(np.nan_to_num(used), lately, out=np.zeros(len(used)), where=works)
        return np.where(counted, np.nan_to_num(used) + lately, used), self._wait.add(own.all, wait, own.rows)

    def _from_sources(self) -> tuple[Floats, Floats]:
        """What waits outside, and what was taken in: as tasks count it, else as Kafka's consumers say."""
        pairs = zip(("external_queue", "tuples_in"), self._from_kafka(), strict=True)
        lag, taken = (np.where(np.isnan(own := self._counted_lately(name)), other, own) for name, other in pairs)
        return lag, taken

    def _lacks_offsets(self, now: float) -> bool:
        """Whether it can't be seen inside of tasks how far they are in Kafka, also after a while."""
        known = self._live.column("external_queue")  # also of a JVM that is starved, and says no more for a while
        places = self._layout.sources
        if all(place not in places or known[row] >= 0.0 for row, place in enumerate(self._rows.places)):
            self._sources_known = now
        self._sources_known = min(self._sources_known, now)
        return not self.offers & FROM_AGENT or now - self._sources_known > BLIND

    def _from_kafka(self) -> tuple[Floats, Floats]:
        """Lag now, and records taken since the instance was first seen; computed when there is anything new."""
        matches, found = self._pulse.matches.places, self._pulse.found
        if self._kafka is None or self._kafka[:2] != (matches, found):
            lag = np.full(len(self._topology), np.nan)
            row_of: dict[Place | None, int] = {place: row for row, place in enumerate(self._rows.places)}
            known = [(key, row_of[place]) for key, place in matches.items() if key in found and place in row_of]
            for key, row in known:
                lag[row] = np.nansum([lag[row], found[key].lag]) if not math.isnan(found[key].lag) else lag[row]
            keys, rows = tuple(key for key, _ in known), np.array([row for _, row in known], dtype=np.int64)
            taken = self._taken.add(keys, np.array([found[key].consumed for key in keys]), rows)
            self._kafka = (matches, found, lag, taken)
        return self._kafka[2], self._kafka[3]


class _Evened:
    """Counters that are read rarely, with the growth between two reads spread over the time until the next one."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._read: tuple[float, Times] | None = None
        self._before: Times | None = None

    def is_due(self, now: float, tolerance: float) -> bool:
        return self._read is None or now - self._read[0] > self._period - tolerance

    def add(self, now: float, times: Times) -> None:
        self._before = times if self._read is None else self.at(now)
        self._read = now, times

    def at(self, now: float) -> Times:
        assert self._read is not None
        assert self._before is not None
        (began, last), first = self._read, self._before
        part = min(1.0, (now - began) / self._period)
        return Times(*(np.where(np.isnan(a), b, a + part * (b - a)) for a, b in zip(first, last, strict=True)))


class _Own(NamedTuple):
    """(process, thread) of all threads that serve one row only, main threads of tasks first, and the row of each."""

    mains: Threads
    others: Threads
    all: Threads
    rows: Ints
    tasks: Ints
    """Rows that are a task's."""


def _owned(rows: Rows, topology: Topology) -> _Own:
    """What is shared by several rows is the cost of none."""
    count = Counter(topology.threads)
    own = [
        (rows.places[row] is None or thread.role is Role.HELPER, (thread.pid, thread.tid), row)
        for thread, row in zip(topology.threads, topology.thread_row.tolist(), strict=True)
        if count[thread] == 1
    ]
    own.sort(key=lambda item: item[0])
    mains = tuple(thread for other, thread, _ in own if not other)
    others = tuple(thread for other, thread, _ in own if other)
    row_of_each = np.array([row for _, _, row in own], dtype=np.int64)
    tasks = np.array([row for row, place in enumerate(rows.places) if place is not None], dtype=np.int64)
    return _Own(mains, others, mains + others, row_of_each, tasks)


def offered(*, beans: bool, agent: bool) -> frozenset[str]:
    """What can be measured with the MBeans of Kafka's clients, and with Treadle's own agent."""
    if agent:
        return SparkEngine.OFFERS
    return SparkEngine.OFFERS - FROM_AGENT - (frozenset() if beans else FROM_BEANS)


def _kernel_knobs() -> dict[str, Knob]:
    """All kernel knobs that can be had here."""
    found: dict[str, Knob] = {}
    for name in kernel.NAMES:
        try:
            found[name] = kernel.make(name)
        except TreadleError:
            continue
    return found
