"""A running Spark application as an engine of the control loop: its topology, its metrics and its knobs.

Nothing in the application is changed. A round reads the reports of an agent in each JVM (a thread dump where no agent
may be loaded), and one small file for each thread. Other threads make HTTP requests: for MBeans, and, without the
agent, to Spark's UI. Lachesis section 4: an SPE driver.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Self

import numpy as np

from treadle.enforce import Knob, kernel
from treadle.engines.spark.agent.agents import Agents
from treadle.engines.spark.application import Application, Process, is_alive
from treadle.engines.spark.counters.batches import BatchReading
from treadle.engines.spark.counters.columns import LiveColumns
from treadle.engines.spark.counters.cpu_times import CpuTimes
from treadle.engines.spark.counters.idle_columns import IdleColumns
from treadle.engines.spark.counters.kafka_columns import KafkaColumns
from treadle.engines.spark.look_due import LookDue
from treadle.engines.spark.offers import FROM_AGENT, FROM_BEANS, OFFERS, offered
from treadle.engines.spark.queries.rest import Directory, Rest
from treadle.engines.spark.slow_poller import SlowPoller
from treadle.engines.spark.threads.layout import Layout
from treadle.engines.spark.threads.places import WHOLE, Rows
from treadle.engines.spark.threads.thread_names import COMPILERS, NETWORK
from treadle.engines.spark.threads.thread_table import ThreadTable
from treadle.errors import TargetGone
from treadle.jvm import JavaThread
from treadle.linux.thread_times import Times
from treadle.model import Bools, Floats, Topology
from treadle.observe.graph import TRACE
from treadle.values import Sample

FIRST = 1.0
"""Maximum seconds for which the first round waits for the agents."""
STALE = 3
"""Number of counter periods after which the last reading of counters is too old to be used."""
BLIND = 3.0
"""Seconds without known offsets of all sources from the tasks after which Kafka's MBeans are read."""


class SparkEngine:
    """A running Spark application, and the threads that read it until `close`.

    `priorities` and `latency_goals` map patterns of query names to priorities, and to goals in seconds; the first
    pattern that fits counts. `knobs` are by default all that the kernel and this user's rights allow. `mbeans=False`
    reads no MBeans of Kafka's clients, and loads no Jolokia into the application; with `loads=False` they are read only
    where Jolokia is loaded already. With `agent` Treadle's own agent is loaded until `close`. `beans_period` is the
    time in seconds between two reads of MBeans. A round waits for at most `patience` seconds until the UI reports a new
    stage's query. `dump_period` is the time between two stack samples without a sign of a change, `period` the time
    between two rounds; agents sample before each round. `admits` decides whether a process may be read and scheduled.
    `compilers` includes the threads of the JVM's compilers. `counts_period` is the time between two readings of the
    counters inside of running tasks, which need the agent.

    Where counters give the offsets of sources, MBeans are read only with `needs_beans`, for the whole application.
    Stacks, which stop the JVM for a moment, are sampled only while some rows are not counted, or with `needs_busy`.
    """

    OFFERS: ClassVar[frozenset[str]] = OFFERS
    _sources_known = math.inf
    """When the offsets of all Kafka sources were last known."""
    _counted = 0
    """The number of counter readings of the agents that were taken into the columns."""
    _took = False
    """True if an agent reported new counters after the last read of CPU times."""
    _heard = 0
    """The agents' `generation` that was last passed on."""
    _stacks, _topology, _rows = 0, Topology((), ()), Rows((), (), ())
    _facts: object = None

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
        rest = Rest(application.ui)
        rest.application = "" if application.local else application.id
        self._directory = Directory(rest, patience=patience)
        shown = {COMPILERS: compilers, NETWORK: not application.local}
        left_out = [service for service, is_shown in shown.items() if not is_shown]
        self._layout = Layout(
            name, self._directory, priorities or {}, latency_goals=latency_goals or {}, left_out=left_out
        )
        self._knobs = knobs
        self._poller = SlowPoller(application, beans_period, loads=loads, admits=admits)
        self._dump_period = dump_period
        self.agents = Agents(loads=agent, period=period, stacks=dump_period, counts=counts_period)
        self._live = LiveColumns(self.agents, self._directory)
        self._needs_busy, self._all_counted = needs_busy, False
        self.agents.keep(self._pids)
        self._table = ThreadTable(self.agents)
        self._cpu_times = CpuTimes(dump_period)
        self._idle = IdleColumns()
        self._kafka = KafkaColumns()
        self._threads: dict[int, list[JavaThread]] = {}
        self._due = LookDue(self.agents, self._directory, self._poller, self._layout, self._table, dump_period)
        self._batch_rows: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading. The application stays as it is."""
        self._poller.close()
        self.agents.close()
        self._table.close()
        self._directory.close()
        self._cpu_times.close()

    # ------------------------------------------------------------ engine

    @property
    def in_process(self) -> bool:
        """True if no process has to be asked: agents report all threads, the rest is in files of the kernel."""
        return bool(self._threads) and self._directory.told and self._table.is_told(self._pids)

    def news(self) -> bool:
        """True if the topology or the counters have changed, or may have. New MBeans alone are no news."""
        now = time.monotonic()
        self.agents.look()
        if now < self._due.calm_until:
            return False
        self._hear()
        if self._due.is_due(now, self._due.signs(self._pids), self._pids) or self.agents.counted != self._counted:
            return True
        self._due.calm_down(now, self._pids)
        return False

    @property
    def calm_until(self) -> float:
        """Until when there is no news unless an agent reports something, which makes `fileno` readable."""
        return self._due.calm_until

    def fileno(self) -> int:
        """A file that is readable when an agent has sent a report."""
        return self.agents.fileno()

    def topology(self) -> Topology:
        """Return the current topology; its version grows only if anything differs."""
        now, poller, layout = time.monotonic(), self._poller, self._layout
        if not self._threads:
            self.agents.settle(FIRST)
        self.agents.look()
        self._hear()
        signs = self._due.signs(self._pids)
        if not self._due.is_due(now, signs, self._pids):
            self._take_counts()
            return self._topology
        self._threads = self._look(now)
        facts = (self._table.version, self._directory.generation, poller.workers)
        if facts != self._facts or now >= layout.ripens or self._due.waits(now):
            drivers = [process.pid for process in poller.processes if process.driver]
            rows = layout.lay_out(self._threads, drivers, poller.workers)
            if rows != self._rows or not self._topology.version:
                self._replace(rows)
        self._due.looked(signs)
        self._facts = facts
        if self._stacks != self._table.stacks:
            self._stacks = self._table.stacks
            self._see_mains()
        self._take_counts()
        return self._topology

    def sample(self, wanted: frozenset[str]) -> Sample:
        """Return the wanted metrics of the last topology. NaN: no thread, no Kafka source, or unknown."""
        now = time.monotonic()
        columns: dict[str, Floats] = {}
        totals: dict[str, float] = {}
        estimated: dict[str, Bools] = {}
        mains = self._read_mains()
        if wanted & {"cpu_time", "run_wait"}:
            of_batches, lately = self._live.column("cpu_time"), self._counted_lately("cpu_time")
            columns["cpu_time"], columns["run_wait"] = self._cpu_times.columns(mains, of_batches, lately)
        for metric in wanted & FROM_AGENT & self.offers:
            columns[metric] = self._counted_lately(metric)
        if "batch_cost" in columns:
            columns["batch_cost"] *= self._cpu_times.cpu_factor
        if "tuples_out" in columns:  # exactly 0 would mean that the sink is not counted
            trace = np.where(self._topology.is_sink, TRACE * self._counted_lately("tuples_in"), 0.0)
            columns["tuples_out"] += np.nan_to_num(trace)
        if "queue" in wanted:
            self._idle.update(now, mains, self._cpu_times.own, self._topology)
            columns["queue"], estimated["queue"] = self._queues()
        if wanted & FROM_BEANS & self.offers:
            self._poller.wants_beans = self._mbeans and (self._needs_beans or self._lacks_offsets(now))
            columns["external_queue"], columns["tuples_in"] = self._from_sources()
            # A consumer that has records left hears of no new ones; these are assumed to arrive as fast as before.
            estimated["external_queue"] = columns["external_queue"] > 0.0
            totals = {"output_rate": self._poller.flow.rate, "total_queue": self._poller.flow.waiting}
        taken = {metric: columns[metric] for metric in wanted & columns.keys()}
        return Sample(now, taken, totals, estimated, self._given())

    def _given(self) -> dict[str, Floats]:
        """Return cost and selectivity of queries in micro-batches, fitted to whole batches."""
        given = self._live.given if self._is_counted else {}
        if "cost" in given:
            given["cost"] *= self._cpu_times.cpu_factor
        return given

    @property
    def busy(self) -> Floats:
        """By instance, the estimated queue; above 0 also while a task is not done with its last row (`needs_busy`)."""
        return self._idle.queue

    @property
    def batch_rows(self) -> Mapping[str, int]:
        """By run of each query in micro-batches, the index of its instance in the topology."""
        return self._batch_rows

    @property
    def batches(self) -> Mapping[str, BatchReading]:
        """By run, the last reading of each query in micro-batches."""
        return self._live.batches

    def cpu_seconds(self) -> float:
        """Return the CPU seconds so far of all scheduled threads that serve a single instance."""
        return self._cpu_times.used()

    @property
    def readings(self) -> int:
        """The number of readings of tasks' counters so far, over all agents."""
        return self._counted

    def set_priorities(self, priorities: Mapping[str, float]) -> None:
        """Replace the priorities of queries, from the next round on."""
        self._layout.priorities, self._facts = dict(priorities), None
        self._due.hurry()

    @property
    def counted_at(self) -> float:
        """Time of the last reading of counters; NaN while there is none."""
        return self._live.time

    @property
    def unplanned(self) -> frozenset[str]:
        """Running queries without a known plan."""
        return self._layout.unplanned

    @property
    def processes(self) -> Sequence[Process]:
        """The current processes."""
        return self._poller.processes

    @property
    def taken(self) -> tuple[float, float]:
        """Records that all Kafka consumers have taken, NaN while no consumer is known, and the time of the request.

        Consumers without a known task count, too.
        """
        return self._poller.taken, self._poller.asked

    def knobs(self) -> Mapping[str, Knob]:
        if self._knobs is None:
            self._knobs = kernel.available()
        return self._knobs

    # ------------------------------------------------------------ looking

    @property
    def _pids(self) -> list[int]:
        return [process.pid for process in self._poller.processes]

    def _hear(self) -> None:
        """Pass the agents' reports on to the directory of jobs and the poller."""
        agents = self.agents
        agents.keep(self._pids)
        if agents.generation != self._heard:
            self._heard = agents.generation
            if (driver := agents.driver) is not None:
                self._directory.tell(driver.jobs.values(), driver.shuffles, driver.plans)
                if self.application.local:  # on a cluster, rows taken here may leave from another host
                    self._poller.selectivity = driver.selectivity
            else:
                self._directory.told = False
                self._poller.selectivity = math.nan

    def _look(self, now: float) -> dict[int, list[JavaThread]]:
        """Read the threads of all processes that still run."""
        alive = [process.pid for process in self._poller.processes if is_alive(process)]
        if not alive and self._poller.ended:
            raise TargetGone("has ended", where=f"application '{self.application.name}'")
        return self._table.look(now, alive)

    def _replace(self, rows: Rows) -> None:
        before = self._topology
        topology = Topology(rows.queries, rows.instances, before.version + 1)
        source = np.array([before.row_of.get(name, -1) for name in topology.ids], dtype=np.int64)
        self._cpu_times.lay_out(rows, topology, source)
        self._kafka.lay_out(source)
        self._rows, self._topology, self._all_counted = rows, topology, False
        self._batch_rows = {
            place.run: row
            for row, place in enumerate(rows.places)
            if place is not None and rows.instances[row].operators == (WHOLE,)
        }
        self._live.lay_out(rows.places)
        if self._idle.lay_out(source):
            self._see_mains()
        self._table.keep(self._layout.pooled)
        self._poller.sources, self._poller.wants_workers = self._layout.sources, self._layout.python

    # ------------------------------------------------------------ columns

    def _see_mains(self) -> None:
        threads = (thread for each in self._threads.values() for thread in each)
        self._idle.see(threads, self._layout.mains, self._rows)

    def _take_counts(self) -> None:
        """Take new readings of counters; sample stacks only if needed."""
        self._counted = self.agents.counted
        if self._live.take(self._pids):
            self._took = True
            self._all_counted = not np.isnan(self._live.column("tuples_in")[self._cpu_times.own.tasks]).any()
        enough = self._all_counted and self._is_counted and not self._needs_busy
        self.agents.stacks = 0.0 if enough else self._dump_period

    def _queues(self) -> tuple[Floats, Bools]:
        """Return the queue of each instance, counted or else estimated, and which values are estimates.

        Rows that a source has not read yet are outside of the engine, so its queue is 0. Counters hold only while
        fresh: in a JVM whose threads get no CPU, the agent does not count either.
        """
        if not self._is_counted:
            return self._idle.queue.copy(), np.ones(len(self._idle.queue), dtype=np.bool_)
        counted = self._live.column("queue")
        is_batched = ~np.isnan(self._live.column("cpu_time"))
        is_source = self._topology.is_source & ~np.isnan(self._live.column("tuples_in")) & ~is_batched
        # Between two batches, a row that was counted before is unknown for a moment; it is not estimated.
        uncounted = np.isnan(counted) & np.isnan(self._live.column("tuples_in"))
        known = np.where(is_source & np.isnan(counted), 0.0, counted)
        unheard = is_batched & (counted > self._live.column("heard"))
        return np.where(uncounted, self._idle.queue, known), uncounted | unheard

    def _counted_lately(self, metric: str) -> Floats:
        """Return a metric as the agents count it; NaN once their counters are stale."""
        return self._live.column(metric) if self._is_counted else np.full(len(self._topology), np.nan)

    @property
    def _is_counted(self) -> bool:
        """Whether the last counters are fresh."""
        return time.monotonic() - self._live.time <= max(0.5, STALE * self.agents.counts)

    def _read_mains(self) -> Times:
        """Return the CPU times of tasks' main threads, as of the last counters."""
        took, self._took = self._took, False
        return self._cpu_times.read_mains(anew=took or not self._is_counted)

    def _from_sources(self) -> tuple[Floats, Floats]:
        """Return by instance the rows that wait in its source and the rows taken in.

        Tasks count both; where they do not, the values are those of Kafka's consumers.
        """
        in_kafka = self._kafka.read(self._poller.matches.places, self._poller.found, self._rows.places)
        pairs = zip(("external_queue", "tuples_in"), in_kafka, strict=True)
        lag, taken = (np.where(np.isnan(own := self._counted_lately(name)), other, own) for name, other in pairs)
        return lag, taken

    def _lacks_offsets(self, now: float) -> bool:
        """True without the agent, or if tasks have not reported offsets of all Kafka sources for `BLIND` seconds."""
        known = self._live.column("external_queue")  # also from a JVM that gets no CPU and reports nothing for a while
        places = self._layout.sources
        if all(place not in places or known[row] >= 0.0 for row, place in enumerate(self._rows.places)):
            self._sources_known = now
        self._sources_known = min(self._sources_known, now)
        return not self.offers & FROM_AGENT or now - self._sources_known > BLIND
