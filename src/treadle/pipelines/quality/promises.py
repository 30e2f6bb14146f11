"""Keeps the promises of a running pipeline: measures its nodes, and drops as many rows as the controller decides.

A sink with a `min_accuracy` below 1 is promised that share of its rows; all other sinks are promised all rows. This
module knows nodes, hops and channels. `decide.quality` decides which share of its rows each sink gets, and `shedding`
drops the others. Stream-Economics section 5.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.decide.quality import Controller, Decision, Kept, Measured, Promise, Short, least_part
from treadle.decide.quality.equations import current_accuracy
from treadle.decide.quality.shortages import Shortages
from treadle.enforce import Enforcer
from treadle.enforce.shed import Count, ShedKnob
from treadle.model import Bools, Floats
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.hops.running import Running
from treadle.pipelines.nodes.node import Kind
from treadle.pipelines.quality.drops import Drops
from treadle.pipelines.quality.flow import WHOLE, flow_of, lowest_read, may_shed
from treadle.pipelines.quality.on_time import OnTime, Progress
from treadle.pipelines.quality.query_work import QueryWork
from treadle.pipelines.quality.shedding import Shedding
from treadle.pipelines.quality.source_rates import SourceRates
from treadle.pipelines.quality.spread import Spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("treadle.pipelines")

WINDOW = 3
"""Number of cycles over which rows, batches and CPU are averaged."""
DRAIN = 4
"""Time within which a backlog is to be processed, in cycles."""
SILENT_CYCLES = 5
SILENT_SECONDS = 5.0
"""If no cycle runs for this many cycles or seconds, whichever is longer, no rows are dropped until the next cycle."""


def of(run: Running) -> Promises | None:
    """Return what keeps the promises of a run; None if no sink allows rows to be dropped."""
    return Promises(run) if may_shed(run.nodes) else None


class Cycle(NamedTuple):
    """The result of a cycle: time (monotonic), rows per second by source, measurements by task, and the decision."""

    time: float
    rates: Mapping[str, float]
    kept: Floats
    """By task: the share of the rows from the sources that was not dropped on the way to it."""
    accuracy: Floats
    """By task: the share of the rows from the sources that were neither dropped nor late; NaN while unknown."""
    cpu: Floats
    """By task: the cores that it used, averaged over `WINDOW` cycles; NaN where not measured."""
    decision: Decision
    short: tuple[Short, ...]
    """The sinks whose minimum can't be kept, with what they get in their own measure of accuracy."""


class Promises:
    """Measures one run, and drops rows between its nodes as the `controller` decides in each cycle.

    It is created before the hops start, because `shed` and `watch` add to their plans. With the option `shed=False` it
    drops nothing, but rows still get the weight column, because corrected results need that.
    """

    def __init__(self, run: Running, instances: Mapping[str, int] = MappingProxyType({})) -> None:
        self.in_process = True
        self.flow = flow_of(run.nodes, run.options.layout, instances)
        self.last: Cycle | None = None
        self.suspended = False
        """Whether all rows are kept, whatever is promised."""
        self._nodes = run.nodes
        self._pipeline = run.name
        self._cycle = run.options.cycle
        self.period = self._cycle
        self._real_time = run.in_real_time
        self._off = not run.options.shed
        self._work = None if self._off else QueryWork(run, self.flow)
        self._shedding = Shedding(run.spark, live=run.in_real_time)
        self._enforcer = Enforcer(ShedKnob(self._shedding))
        self.controller = Controller(self.flow, drain=DRAIN * self._cycle, cycle=self._cycle)
        tasks = self.flow.tasks
        self._streams = tuple(
            self._name(tasks[start], tasks[end])
            for start, end in zip(self.flow.start.tolist(), self.flow.end.tolist(), strict=True)
        )
        self._is_source = np.isin(np.arange(len(self.flow)), self.flow.sources)
        self._hops: Mapping[str, Hop] = run.hops
        self._looks: deque[tuple[float, Floats]] = deque(maxlen=WINDOW + 1)
        self._on_time = OnTime(len(self.flow), self._cycle, WINDOW)
        self._passed, self._passed_at = np.zeros(len(self.flow)), np.zeros(len(self.flow))
        """By task, in real-time mode: the rows that have passed it, and when that number last grew (monotonic)."""
        sources = tuple(tasks[task] for task in self.flow.sources.tolist())
        self._sources = SourceRates(sources, self._readers(), run.channels, run.hops, self._cycle)
        self._seen: Measured
        """The last input of the controller."""
        self._counts: tuple[Mapping[str, Count], Mapping[str, Count]] = ({}, {})
        self._shortages = Shortages("sink", log)
        self._spreads = {node.name: Spread(node) for node in run.nodes.values() if node.accuracy is not None}
        self._drops = Drops(self.flow, self._streams, self._spreads.keys())

    @property
    def decision(self) -> Decision | None:
        """The decision of the last cycle."""
        return None if self.last is None else self.last.decision

    @property
    def _cpu_measured(self) -> bool:
        return self._work is not None and self._work.measures

    @property
    def sheds(self) -> bool:
        """Whether any rows are dropped at present."""
        return self.last is not None and bool((self.last.decision.desired < WHOLE).any())

    @property
    def can_shed(self) -> bool:
        """Whether the plans of the hops can drop rows, so that other promises can be kept from now on."""
        return not self._off

    def promise(self, promises: Mapping[str, Promise]) -> None:
        """Keep these promises, by sink, from the next cycle on."""
        self.flow = replace(self.flow, promises=dict(promises))
        self.controller.follow(self.flow)
        self._drops.follow(self.flow)

    def shed(self, rows: DataFrame, producer: str, consumer: str) -> DataFrame:
        """Return the rows of node `producer` that node `consumer` reads, without those that are dropped."""
        if self._off:
            return self._shedding.weighed(rows)
        return self._shedding.shed(rows, self._name(producer, consumer), self._nodes[producer].shed)

    def watch(self, rows: DataFrame, sink: str) -> DataFrame:
        """Return the same rows, the input of a sink; Spark observes their values if the sink's accuracy needs these."""
        return self._spreads[sink].watch(rows) if sink in self._spreads else rows

    def measure(self, now: float) -> Measured | None:
        """Measure all tasks. None if shedding is off, before there are two samples, and while first batches run.

        First batches cost more than later ones, so no decision is made from them.
        """
        work = self._work
        if work is None or not work.ready:
            return None
        self._shedding.hold(max(SILENT_SECONDS, SILENT_CYCLES * self._cycle))
        if work.cold():
            self._looks.clear()
        self._looks.append(self._look())
        if len(self._looks) < 2:
            return None
        if self._spreads:
            self.controller.promise(self._minima())
        (first, oldest), (now, latest) = self._looks[0], self._looks[-1]
        self._seen = self._measured(now, np.maximum(latest - oldest, 0.0) / (now - first))
        return self._seen

    def carry_out(self, decision: Decision, now: float) -> None:
        """Drop rows as decided, or none while suspended, and record the cycle in `last`."""
        if self.suspended:
            whole = np.ones_like(decision.desired)
            streams = np.ones_like(decision.streams)
            decision = replace(decision, desired=whole, streams=streams, outside=whole, short=())
        (first, oldest), (last, before), (now, latest) = self._looks[0], self._looks[-2], self._looks[-1]
        lately = np.maximum(latest - before, 0.0) / (now - last)
        local = self._kept(lately, np.maximum(latest - oldest, 0.0) / (now - first))
        on_time = np.where(self._on_time.stalled, 0.0, self._on_time.part)
        on_time = np.where(self._on_time.known, on_time, np.nan)
        kept = current_accuracy(self.flow, local)
        accuracy = np.minimum(current_accuracy(self.flow, local * on_time), WHOLE)
        used = self._seen.cpu if self._cpu_measured else np.full(len(self._seen.cpu), np.nan)
        cpu: Floats = np.bincount(self.flow.task_of, weights=used, minlength=len(self.flow)).astype(np.float64)
        short = tuple(self._in_own_units(each) for each in decision.short)
        self.last = Cycle(now, dict(self._sources.rates), kept, accuracy, cpu, decision, short)
        # A source drops nothing itself: each of its readers drops rows where it reads them.
        keep = decision.streams * np.where(self._is_source, decision.outside, 1.0)[self.flow.start]
        self._enforcer.apply(self._enforcer.diff(self._streams, np.round(keep, 4)))
        self._drops.update(decision.desired, self._counts[0])
        self._shortages.tell(short)

    def keep_all(self) -> None:
        """Drop nothing until the next decision."""
        self.last = None
        self._looks.clear()
        self._enforcer.restore()

    def close(self) -> None:
        """Stop measuring and dropping: all rows are kept again."""
        self._enforcer.restore()
        if self._work is not None:
            self._work.close()
        self._drops.close(self._shedding.counts())
        self._shedding.forget(f"{self._pipeline}/")
        self._shedding.release()  # another run of this session calls `hold` again in its next cycle

    def lost(self) -> float:
        """The share of the input that is dropped before the sinks, averaged over the sinks; 0 before any cycle."""
        return 0.0 if self.last is None else float(np.mean(1.0 - self.last.kept[self.flow.sinks]))

    def status(self) -> dict[str, Any]:
        """Report by sink its promise, target and accuracy, and by stream the shares of its rows to keep and kept.

        `kept` is the share of the rows that was kept in the last cycle, `kept_in_all` in the whole run. `since` is when
        the present period of dropping began.
        """
        flow, last = self.flow, self.last
        latest, earlier = self._counts
        sinks: dict[str, Any] = {}
        for sink in flow.sinks.tolist():
            promise = flow.promises[flow.tasks[sink]]
            sinks[flow.tasks[sink]] = {
                "priority": promise.priority,
                "min_accuracy": promise.accuracy,
                "own_accuracy": flow.tasks[sink] in self._spreads,
                "promised": None if last is None else self._told_of(sink, float(last.decision.desired[sink])),
                "accuracy": None if last is None else self._told_of(sink, float(last.accuracy[sink])),
                "cpu": None if last is None or np.isnan(last.cpu[sink]) else round(float(last.cpu[sink]), 3),
                "kept": None if last is None else round(float(last.kept[sink]), 4),
                "kept_in_all": round(self._drops.kept(flow.tasks[sink]), 4),
                "since": self._drops.since(flow.tasks[sink]),
            }
        streams = {
            stream.removeprefix(f"{self._pipeline}/"): {
                "keep": self._shedding.get(stream),
                "kept": round(latest[stream].since(earlier.get(stream, Count(0, 0))).part, 4),
                "rows": latest[stream].seen,
            }
            for stream in self._streams
            if stream in latest
        }
        short = [each.told("sink") for each in (last.short if last else ())]
        rates = {name: round(rate, 3) for name, rate in last.rates.items()} if last else {}
        return {"sinks": sinks, "streams": streams, "short": short, "rates": rates, "time": last and last.time}

    # ------------------------------------------------------------ inside

    def _minima(self) -> Floats:
        """By sink: the least share of its rows that it must get, as declared or as its accuracy measure needs now."""
        for name, spread in self._spreads.items():
            spread.look(self._hops[name].query if name in self._hops else None)
        return np.array([self._least_part(sink) for sink in self.flow.sinks.tolist()])

    def _least_part(self, sink: int) -> float:
        name = self.flow.tasks[sink]
        measure, promise = self._nodes[name].accuracy, self.flow.promises[name]
        return promise.accuracy if measure is None else least_part(measure, promise.accuracy, self._kept_of(sink, 1.0))

    def _kept_of(self, sink: int, part: float) -> Kept:
        return Kept(part, float(self.controller.whole_rate[sink]), self._spreads[self.flow.tasks[sink]].value)

    def _told_of(self, sink: int, part: float) -> float | None:
        """Convert a share of a sink's rows to the sink's own measure of accuracy; None if the share is NaN."""
        if np.isnan(part):
            return None
        measure = self._nodes[self.flow.tasks[sink]].accuracy
        return round(part if measure is None else float(measure(self._kept_of(sink, part))), 4)

    def _in_own_units(self, short: Short) -> Short:
        """Convert a shortage to its sink's own measure of accuracy."""
        if self._nodes[short.sink].accuracy is None:
            return short
        gets = self._told_of(self.flow.tasks.index(short.sink), short.gets) or 0.0
        return short._replace(wants=self.flow.promises[short.sink].accuracy, gets=gets, of="accuracy")

    def _readers(self) -> dict[str, dict[str, str | None]]:
        """By user-defined source: the hops that read it, each with the stream on which it drops rows, or None.

        In layout `hops` the one reader is the source's own hop, which drops nothing.
        """
        flow = self.flow
        found: dict[str, dict[str, str | None]] = {}
        for task in flow.sources.tolist():
            name = flow.tasks[task]
            if self._nodes[name].kind is Kind.SOURCE:
                ends = [flow.tasks[end] for end in flow.end[flow.start == task].tolist()]
                found[name] = {name: None} if flow.copies[task] else {end: self._name(name, end) for end in ends}
        return found

    def _name(self, producer: str, consumer: str) -> str:
        return f"{self._pipeline}/{producer}>{consumer}"

    def _look(self) -> tuple[float, Floats]:
        """Take a sample: its time (monotonic), and all counters in one array, which `_split` takes apart."""
        now = self._sources.look_at_channels()
        counts = self._shedding.counts()
        self._sources.look_at_queries(now, counts)
        self._counts = counts, self._counts[0]
        tasks = self.flow.tasks
        seen, kept = np.array([counts.get(stream, Count(0, 0)) for stream in self._streams]).reshape(-1, 2).T
        out = [self._hops[name].tuples_out if name in self._hops else 0 for name in tasks]
        batches = [self._hops[name].batches if name in self._hops else 0 for name in tasks]
        waiting = self._note_progress(now, seen)
        work = () if self._work is None else self._work.read()
        return now, np.array([*seen, *kept, *out, *batches, *waiting, *work], dtype=np.float64)

    def _note_progress(self, now: float, seen: Floats) -> list[float]:
        """Pass the progress of all queries to `OnTime`; return the backlog in rows, by task.

        Finished rows are counted before waiting rows: otherwise rows of a batch that ends in between would count twice.
        In real-time mode batches are long, so a row counts as finished when it passes the shedding expression. If rows
        are read again, no more rows count as finished than have arrived.
        """
        hops = [self._hops.get(name) for name in self.flow.tasks]
        done = np.array([0 if hop is None else hop.tuples_in for hop in hops], dtype=np.float64)
        waiting = [0.0 if hop is None else self._waiting(hop, now) for hop in hops]
        came = done + waiting
        if self._real_time:
            passed = np.bincount(self.flow.end, weights=seen, minlength=len(hops))
            done = np.minimum(np.maximum(done, passed), came)
            self._passed_at = np.where(done > self._passed, now, self._passed_at)
            self._passed = done
            batches, ended = done, self._passed_at  # each row counts as a batch that ends when the row passes
        else:
            batches = np.array([0 if hop is None else hop.batches for hop in hops], dtype=np.float64)
            ended = np.array([0.0 if hop is None else hop.well for hop in hops])
        self._on_time.look(now, Progress(done, came, batches, ended))
        return waiting

    def _waiting(self, hop: Hop, now: float) -> float:
        return sum(backlog.rows for backlog in hop.backlogs()) + self._sources.waiting(hop, now)

    def _split(self, counters: Floats) -> list[Floats]:
        """Split the array of `_look` into six arrays.

        These are by stream the rows seen and kept, by task the rows out, batches and backlog, and last the counters of
        `QueryWork`.
        """
        tasks, streams = len(self.flow), len(self._streams)
        return np.split(counters, np.cumsum([streams, streams, tasks, tasks, tasks]))

    def _standing(self) -> Floats:
        """By task: the least backlog in the window's samples. More rows wait while a batch runs, which is normal."""
        waited: Floats = np.min([self._split(counters)[-2] for _, counters in self._looks], axis=0)
        return waited

    def _kept(self, lately: Floats, on_average: Floats) -> Floats:
        """By task: the least share kept on a stream that it reads, in the last cycle; over the window if no rows came.

        Both arguments are counters per second: `lately` in the last cycle, `on_average` over the window.
        """
        seen, kept, *_ = self._split(lately)
        earlier, kept_earlier, *_ = self._split(on_average)
        seen, kept = np.where(seen > 0.0, seen, earlier), np.where(seen > 0.0, kept, kept_earlier)
        return lowest_read(self.flow, np.where(seen > 0.0, kept / np.where(seen > 0.0, seen, 1.0), 1.0))

    def _measured(self, now: float, on_average: Floats) -> Measured:
        """Return the controller's input: the latest arrival rates, and the counters per second over the window.

        Work is averaged over the window because batches are of unequal size.
        """
        flow = self.flow
        tasks = len(flow)
        _, kept, out, batches, _, work = self._split(on_average)
        came = np.array([self._sources.rates.get(name, 0.0) for name in flow.tasks])
        taken: Floats = np.bincount(flow.end, weights=kept, minlength=tasks).astype(np.float64)
        own_source = self._is_source & (flow.copies > 0)
        taken = np.where(own_source, out, taken)  # what it reads is known only by the rows that it puts out
        waiting = self._standing()
        behind = waiting.sum() > came.sum() * self._cycle / 2
        assert self._work is not None
        cpu, cores, most = self._work.of(work, behind=bool(behind))
        return Measured(
            time=now,
            in_rate=(taken / np.maximum(flow.copies, 1))[flow.task_of],
            out_rate=np.where(self._is_source, came, out),
            arriving=came,
            waiting=waiting,
            cpu=cpu[flow.task_of],
            worker=np.zeros(len(flow.task_of), dtype=np.int64),
            busy=np.array([cpu.sum()]),
            cores=np.array([cores]),
            batches=None if self._real_time else batches[flow.task_of],
            behind=bool(behind),
            local=self._kept(on_average, on_average) * self._on_time.part,
            unknown=~self._on_time.known,
            fixed=own_source | self._unsheddable(),
            most=most[flow.task_of],
        )

    def _unsheddable(self) -> Bools:
        """By task: whether a source of unknown lag feeds it, so that rows must not be dropped.

        Such a source may have a backlog. Dropping rows would only let its readers read that faster, and save no CPU.
        """
        unknown = np.isin(self.flow.tasks, list(self._sources.unknown))
        fed: Bools = self.flow.downstream(np.where(unknown, 0.0, 1.0)) == 0.0
        return fed
