"""Keeps the promises of a running pipeline: measures its nodes, asks the controller, and sheds what that decides.

A sink with a `min_accuracy` below 1 has made a promise; all others are to have everything. It knows nodes, hops and
channels; what is right is decided by `decide.quality`, and rows are dropped by `shedding`. Stream-Economics section 5.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.decide.quality import Controller, Decision, Flow, Measured, Promise, Short
from treadle.enforce import Enforcer
from treadle.enforce.elastic import usable_cores
from treadle.enforce.shed import Count, ShedKnob
from treadle.model import Floats
from treadle.pipelines import graph, jvm
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.hop import Hop
from treadle.pipelines.node import Node
from treadle.pipelines.shedding import Shedding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from treadle.pipelines.runner import Run

log = logging.getLogger("treadle.pipelines")

WHOLE = 1.0
WINDOW = 3
"""Cycles over which work is averaged."""
COLD = 2
"""Batches of a hop that say nothing of what the others will cost."""
DRAIN = 4
"""Cycles in which what waits is to be worked off."""
HEADROOM = 0.95
"""The part of the slots that is given away: a load that is exactly as high as what there is has queues without end."""


def promised(nodes: Mapping[str, Node]) -> dict[str, Promise]:
    """What each sink is promised; without a word of its owner, everything."""
    return {
        node.name: Promise(node.priority, WHOLE if node.min_accuracy is None else node.min_accuracy)
        for node in nodes.values()
        if node.kind.ends
    }


def flow_of(nodes: Mapping[str, Node], layout: str) -> Flow:
    """What runs and what it reads: in `hops` each node, else each sink. Feeds and topics are tasks that nobody runs."""
    if layout == "hops":
        inputs = {node.name: node.inputs for node in graph.in_order(nodes)}
        copies = {node.name: int(node.kind.runs) for node in nodes.values()}
    else:
        starts = {node.name: () for node in nodes.values() if node.kind.starts}
        ends = {
            node.name: tuple(name for name in starts if name in graph.needed_by([node.name], nodes))
            for node in nodes.values()
            if node.kind.ends
        }
        inputs, copies = {**starts, **ends}, {**dict.fromkeys(starts, 0), **dict.fromkeys(ends, 1)}
    return Flow.of(inputs, promised(nodes), copies)


def of(run: Run) -> Promises | None:
    """Those of a run; None if nothing may be shed in it."""
    least = [promise.accuracy for promise in promised(run.nodes).values()]
    return Promises(run) if run.options.shed and min(least) < WHOLE else None


class Promises:
    """For one run, from before its hops start. Each cycle is a call of `step`."""

    def __init__(self, run: Run) -> None:
        self.flow = flow_of(run.nodes, run.options.layout)
        self.decision: Decision | None = None
        self._nodes = run.nodes
        self._pipeline = run.pipeline.name
        self._period = run.options.cycle
        self._gate = run.gate if run.realtime is None else None
        self._process = 0 if run.realtime is None else jvm.pid(run.spark)
        self._shedding = Shedding(run.spark)
        self._enforcer = Enforcer(ShedKnob(self._shedding))
        self._controller = Controller(self.flow, drain=DRAIN * self._period)
        tasks = self.flow.tasks
        self._streams = tuple(
            self._name(tasks[start], tasks[end])
            for start, end in zip(self.flow.start.tolist(), self.flow.end.tolist(), strict=True)
        )
        self._from_outside = np.isin(self.flow.start, self.flow.sources) & (self.flow.copies[self.flow.start] == 0)
        self._hops: Mapping[str, Hop] = run.hops
        self._channels: Mapping[str, Source] = run.channels
        self._looks: deque[tuple[float, Floats]] = deque(maxlen=WINDOW + 1)
        self._rates: Mapping[str, float] = {}
        self._counts: tuple[Mapping[str, Count], Mapping[str, Count]] = ({}, {})
        self._told: tuple[Short, ...] = ()
        self._cold: dict[str, float] = {}

    def shed(self, rows: DataFrame, producer: str, consumer: str) -> DataFrame:
        """What is left of the rows that a node gives to another."""
        return self._shedding.shed(rows, self._name(producer, consumer), self._nodes[producer].shed)

    def step(self, now: float) -> None:
        """A cycle, if it is time for one."""
        if self._looks and now - self._looks[-1][0] < self._period:
            return
        self._looks.append((now, self._look()))
        if len(self._looks) < 2:
            return
        (first, oldest), (last, before), (now, latest) = self._looks[0], self._looks[-2], self._looks[-1]
        lately = np.maximum(latest - before, 0.0) / (now - last)
        on_average = np.maximum(latest - oldest, 0.0) / (now - first)
        self.decision = self._controller.cycle(self._measured(now, lately, on_average))
        keep = self.decision.streams * np.where(self._from_outside, self.decision.outside[self.flow.start], 1.0)
        self._enforcer.apply(self._enforcer.diff(self._streams, np.round(keep, 4)))
        self._tell(self.decision.short)

    def close(self) -> None:
        """Nothing is shed any more."""
        self._enforcer.restore()
        self._shedding.forget(f"{self._pipeline}/")

    def status(self) -> dict[str, Any]:
        """Each sink with what it was promised, is to have and has; each stream with what is kept and was kept."""
        flow, decision = self.flow, self.decision
        latest, earlier = self._counts
        sinks: dict[str, Any] = {}
        for sink in flow.sinks.tolist():
            promise = flow.promises[flow.tasks[sink]]
            sinks[flow.tasks[sink]] = {
                "priority": promise.priority,
                "min_accuracy": promise.accuracy,
                "promised": None if decision is None else round(float(decision.desired[sink]), 4),
                "accuracy": None if decision is None else round(float(decision.current[sink]), 4),
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
        short = [told(each) for each in (decision.short if decision else ())]
        return {"sinks": sinks, "streams": streams, "short": short, "rates": dict(self._rates)}

    # ------------------------------------------------------------ inside

    def _name(self, producer: str, consumer: str) -> str:
        return f"{self._pipeline}/{producer}>{consumer}"

    def _look(self) -> Floats:
        """All counters in a row: rows from outside, rows seen and kept on each stream, rows out, and work done."""
        counts = self._shedding.counts()
        self._counts = counts, self._counts[0]
        tasks = self.flow.tasks
        came = [
            self._channels[name].total if name in self._channels and name not in self._hops else 0 for name in tasks
        ]
        seen, kept = np.array([counts.get(stream, Count(0, 0)) for stream in self._streams]).reshape(-1, 2).T
        out = [self._hops[name].tuples_out if name in self._hops else 0 for name in tasks]
        busy = [self._busy(self._hops[name]) if name in self._hops else 0.0 for name in tasks]
        whole = cpu_seconds(self._process) if self._process else 0.0
        batches = [self._hops[name].batches if name in self._hops else 0 for name in tasks]
        return np.array([*came, *seen, *kept, *out, *busy, *batches, whole], dtype=np.float64)

    def _busy(self, hop: Hop) -> float:
        """Without its first batches: these start workers and compile what the others use."""
        if hop.batches < COLD:
            return 0.0
        return hop.busy - self._cold.setdefault(hop.name, hop.busy)

    def _measured(self, now: float, lately: Floats, on_average: Floats) -> Measured:
        """Who comes counts as of the last cycle; what was done with it over some, since batches come and go."""
        flow = self.flow
        tasks, streams = len(flow), len(self._streams)
        parts = np.cumsum([tasks, streams, streams, tasks, tasks, tasks])
        came = lately[:tasks]
        _, seen, kept, out, busy, batches, whole = np.split(on_average, parts)
        self._rates = {
            name: round(float(rate), 3)
            for name, rate, copies in zip(flow.tasks, came, flow.copies, strict=True)
            if not copies
        }
        part = np.where(seen > 0.0, kept / np.where(seen > 0.0, seen, 1.0), 1.0)
        taken: Floats = np.bincount(flow.end, weights=kept, minlength=tasks).astype(np.float64)
        own_source = np.isin(np.arange(tasks), flow.sources) & (flow.copies > 0)
        taken = np.where(own_source, out, taken)  # what it reads elsewhere is known by what it gives
        arriving = np.where(own_source, out, came)
        waiting = [sum(b.rows for b in self._hops[name].backlogs()) if name in self._hops else 0 for name in flow.tasks]
        if self._process:  # all stages run all the time; what they use together is divided by what they take
            busy = whole * taken / max(taken.sum(), 1.0)
        cores = np.array([HEADROOM * (self._gate.slots if self._gate is not None else usable_cores())])
        cpu = busy[flow.task_of]
        return Measured(
            time=now,
            in_rate=taken[flow.task_of],
            out_rate=np.where(flow.copies > 0, out, came),
            arriving=arriving,
            waiting=np.array(waiting, dtype=np.float64),
            cpu=cpu,
            worker=np.zeros(len(flow.task_of), dtype=np.int64),
            busy=np.array([cpu.sum()]),
            cores=cores,
            batches=None if self._process else batches[flow.task_of],
            local=_lowest(flow, part),
        )

    def _tell(self, short: tuple[Short, ...]) -> None:
        """Which minima can't be kept, when that changes."""
        names = {each.sink for each in short}
        before = {each.sink for each in self._told}
        for each in short:
            if each.sink not in before:
                log.warning("%s", told(each), extra={"sink": each.sink})
        for name in sorted(before - names):
            log.info("sink '%s' has its minimum again", name, extra={"sink": name})
        self._told = short


def _lowest(flow: Flow, part: Floats) -> Floats:
    """Task -> the least that it takes of a stream."""
    found = np.ones(len(flow))
    np.minimum.at(found, flow.end, part)
    return found


def cpu_seconds(pid: int) -> float:
    """What a process has used of the CPU so far."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read(1024).rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def told(short: Short) -> str:
    """A minimum that can't be kept, in a line: which, how much is missing, and what would have to give."""
    return (
        f"sink '{short.sink}' is promised {short.wants:.0%} of its input and gets {short.gets:.0%}: "
        f"{short.missing:.2f} cores are missing (lower its min_accuracy or one of a higher priority, or add cores)"
    )
