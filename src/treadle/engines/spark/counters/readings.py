"""The columns of all tasks at one moment, read into rows: taken in, put out and waiting, and how old they are.

What was read before makes curves, one for each pair of a writer and a reader. `live` explains what they are good for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from treadle.engines.spark.agent.reports import Task
from treadle.engines.spark.counters.edges import depths, edges_between, sum_of
from treadle.engines.spark.kafka.source_lag import SourceLag
from treadle.engines.spark.queries.operators import StageCounters
from treadle.engines.spark.threads.places import Place
from treadle.model import Floats, Ints

MEMORY = 64
"""Readings of which the curves consist: the older they are, the fewer are kept."""
MOST_PLACES = 1 << 15
"""Of which the past is kept."""
PREFIX = 4
"""Bytes before each row in a message, which say how long it is."""
ENOUGH = 2_000
"""Rows of a stage after which their mean size is known well enough to count by bytes."""


class Located(NamedTuple):
    """Where a task belongs, and which of its columns count what."""

    job: int
    place: Place
    counters: StageCounters


class Reading(NamedTuple):
    """All tasks at one time; NaN: unknown. What tasks of earlier batches at the same place had counted is included."""

    time: float
    places: tuple[Place, ...]
    taken: Floats
    """Rows that each has taken in."""
    put_out: Floats
    queue: Floats
    """Rows that wait in the shuffles that it reads; unknown for one that reads a source."""
    head_age: Floats
    """Seconds since the oldest of them came into the system, and since they all did on average; 0 where none waits.

    For one that reads a source, the oldest of those outside.
    """
    mean_age: Floats
    latency: Floats
    """Seconds since the rows that it takes now came into the system."""
    output_queue: Floats
    """Rows that it has put out and not got rid of."""
    external_queue: Floats
    """Rows that wait outside of the engine for one that reads a source."""


@dataclass
class Past:
    """What jobs that are over have counted, by place."""

    rows: dict[Place, tuple[float, float]] = field(default_factory=dict)
    """Taken in and put out."""
    sizes: dict[tuple[str, int], float] = field(default_factory=dict)
    """By run and position of a stage the mean size in bytes of the rows that it wrote."""
    lags: dict[tuple[Place, str], SourceLag] = field(default_factory=dict)
    """By place and column, which go on from batch to batch."""

    def add(self, wired: TaskColumns, running: Collection[int]) -> None:
        """Take over what the jobs that do not run any more have counted to their end."""
        if wired.last is None:
            return
        all_taken, all_put_out = wired.when_over(wired.last)
        for row, each in enumerate(wired.located):
            if each is None or each.job in running:
                continue
            taken, put_out = float(all_taken[row]), float(all_put_out[row])
            before = self.rows.get(each.place, (math.nan, math.nan))
            self.rows[each.place] = _either(taken, before[0]), _either(put_out, before[1])
            if (size := float(wired.size_of_stage[row])) > 0.0:
                self.sizes[each.place.run, each.place.position] = size
        if len(self.rows) > MOST_PLACES:
            self.rows, self.sizes, self.lags = {}, {}, {}


def _either(new: float, old: float) -> float:
    return old if math.isnan(new) else new


class TaskColumns:
    """The columns of the tasks of one moment, and the curves of what they have written since they began."""

    def __init__(
        self, tasks: Sequence[Task], located: Sequence[Located | None], past: Past, before: TaskColumns | None
    ) -> None:
        self.located = tuple(located)
        self.last: Reading | None = None
        self.bytes_written = np.full(len(tasks), np.nan)
        self.size_of_stage = np.full(len(tasks), np.nan)
        """The mean size of rows that each stage has written since its job began, once that is known well enough."""
        starts = np.cumsum([0, *(len(task.columns) for task in tasks)])
        columns = [
            {name: int(start) + at for at, name in enumerate(task.columns)}
            for task, start in zip(tasks, starts, strict=False)
        ]
        counters = [StageCounters() if each is None else each.counters for each in located]
        self.places = tuple(
            Place("", -1, number) if each is None else each.place for number, each in enumerate(located)
        )
        self._taken = sum_of([each.taken for each in counters], columns)
        self._put_out = sum_of([each.put_out for each in counters], columns)
        self._passes_on = np.array([each.passes_on for each in counters])
        self._written = np.array(
            [own.get(f"metric:{each.written}", -1) for own, each in zip(columns, counters, strict=True)]
        )
        held = [[own[name] for name in own if name.startswith("held:")] for own in columns]
        self._held = np.array([own[0] if len(own) == 1 else -1 for own in held])
        self._base = np.array([past.rows.get(place, (0.0, 0.0)) for place in self.places]).reshape(-1, 2).T
        self._base = np.nan_to_num(self._base)
        self._size = np.array([past.sizes.get((place.run, place.position), np.nan) for place in self.places])
        stages: dict[tuple[str, int], int] = {}
        self._stage = np.array([stages.setdefault(place[:2], len(stages)) for place in self.places], dtype=np.int64)
        self._sources = [
            (task, own[name], own[f"end:{name[7:]}"], past.lags.setdefault((self.places[task], name), SourceLag()))
            for task, own in enumerate(columns)
            for name in own
            if name.startswith("offset:")
        ]
        self._connect(tasks, columns, before)

    def _connect(self, tasks: Sequence[Task], columns: Sequence[dict[str, int]], before: TaskColumns | None) -> None:
        edges = edges_between(tasks, columns)
        depth = depths(len(tasks), [(edge.writer, edge.reader) for edge in edges])
        edges.sort(key=lambda edge: depth[edge.reader])
        self._keys = {edge.key: number for number, edge in enumerate(edges)}
        integers = np.array([edge[1:10] for edge in edges], dtype=np.int64).reshape(-1, 9).T
        self._writer, self._reader, self._sent_at, self._filling = integers[:4]
        self._message, self._origin, self._identity, self._waiting, self._received = integers[4:]
        self._writers = np.array([edge.writers for edge in edges], dtype=np.int64)
        self._share = np.array([edge.share for edge in edges])
        self._alone = np.array([edge.alone for edge in edges], dtype=np.bool_)
        inboxes: dict[tuple[int, int], int] = {}
        self._inbox = np.array(
            [inboxes.setdefault((edge.key[0], edge.reader), len(inboxes)) for edge in edges], dtype=np.int64
        )
        """Edges with the same number are read from one queue."""
        self._seen = self._of_inbox(np.ones(len(edges)))
        """How many writers of that queue are looked at."""
        self._is_reader = np.zeros(len(tasks), dtype=np.bool_)
        self._is_reader[self._reader] = True
        self._numbers = np.arange(len(edges))
        starts = np.flatnonzero(np.diff(depth[self._reader], prepend=-1))
        levels = [slice(*each) for each in pairwise([*starts.tolist(), len(edges)])]
        self._levels = [(level, np.unique(self._reader[level])) for level in levels]
        """Edges whose readers are equally far from the sources, which stand side by side, and these readers."""
        self._times: Floats = np.zeros(0) if before is None else before._times
        memory, count = len(self._times), len(edges)
        self._curves = np.zeros((4, memory, count))
        """At these times, of each edge: the last message that was sent, rows that were put out, those of them that were
        sent, and how old they were then."""
        self._curves[0] = -1.0
        self._reached = np.full(count, -1.0)
        self._is_reading = np.zeros(count, dtype=np.bool_)
        """Whether the reader of each edge is inside of a message of its writer."""
        self._rows_behind = np.zeros(count)
        """Rows that wait on each edge, by messages."""
        if before is not None:
            same = [(at, before._keys[key]) for key, at in self._keys.items() if key in before._keys]
            new, old = np.array(same, dtype=np.int64).reshape(-1, 2).T
            self._curves[:, :, new] = before._curves[:, :, old]
            self._reached[new] = before._reached[old]

    def read(self, time: float, values: Floats) -> Reading:
        """What is known at a time; `values` end with one that is unknown."""
        with np.errstate(all="ignore"):
            return self._read(time, values)

    def _read(self, time: float, values: Floats) -> Reading:
        sent = np.where(self._sent_at >= 0, values[self._sent_at], np.nan)
        self._follow(values, sent)
        taken, put_out = self._taken.of(values), self._put_out.of(values)
        taken[self._is_reader] = 0.0
        times = np.append(self._times, time)
        curves = np.concatenate([self._curves, np.full((4, 1, len(sent)), np.nan)], axis=1)
        all_sent, rows, rows_sent, ages = curves
        all_sent[-1] = sent
        got = np.full(len(sent), np.nan)
        self.bytes_written = np.where(self._written >= 0, values[self._written], np.nan)
        for level, readers in self._levels:
            writer = self._writer[level]
            rows[-1, level] = put_out[writer] * self._share[level]
            rows_sent[-1, level] = np.maximum(rows[-1, level] - self._unsent(level, values, put_out), 0.0)
            for curve in (rows, rows_sent):  # a counter may be read a moment before the other
                curve[-1, level] = np.fmax(curve[-1, level], curve[-2:, level].max(axis=0))
            got[level] = value_at(all_sent[:, level], rows_sent[:, level], self._reached[level])
            # Who reads from processes that nobody looks at, on another host: it is not known what is of whom.
            got[level][values[self._writers[level]] > self._seen[level]] = np.nan
            self._rows_behind[level] = np.maximum(rows[-1, level] - got[level], 0.0)
            np.add.at(taken, self._reader[level], got[level])
            self._pass_on(readers, taken, put_out)
            self._correct(level, taken, got)
        # What the writer has counted may be older than what the reader has: who reads a message has a row to do.
        waiting = np.maximum(self._evened(rows[-1], got), np.where(self._is_reading, 1.0, 0.0))
        queue = np.where(self._is_reader, np.bincount(self._reader, waiting, len(self.places)), np.nan)
        external, source_ages = self._outside(time, values)
        latency = self._latencies(time, times, rows, got, ages, source_ages)
        mean = self._mean_ages(time, times, rows, got, waiting, ages)
        head = np.where((queue == 0.0) | (external == 0.0), 0.0, latency)
        kept = slice(None) if len(times) <= MEMORY else _kept(len(times))
        self._times, self._curves = times[kept], curves[:, kept]
        held = np.where(self._held >= 0, values[self._held], np.nan) * put_out / self.bytes_written
        self.last = Reading(
            time,
            self.places,
            self._base[0] + taken,
            self._base[1] + put_out,
            queue,
            head,
            mean,
            latency,
            held,
            external,
        )
        return self.last

    def when_over(self, last: Reading) -> tuple[Floats, Floats]:
        """Rows taken in and put out by tasks whose job is over: whatever was put out has been taken in by then."""
        taken, put_out = last.taken - self._base[0], last.put_out - self._base[1]
        for level, readers in self._levels:
            given = np.bincount(self._reader[level], put_out[self._writer[level]] * self._share[level], len(taken))
            of_stage, count = self._stage[readers], len(self.places)
            missing = np.bincount(of_stage, given[readers] - taken[readers], count)
            taken[readers] += np.fmax(missing / np.maximum(np.bincount(of_stage, minlength=count), 1), 0.0)[of_stage]
            with np.errstate(all="ignore"):
                self._pass_on(readers, taken, put_out)
        return self._base[0] + taken, self._base[1] + put_out

    def _follow(self, values: Floats, sent: Floats) -> None:
        """Where each reader is: in the middle of the message that it reads, or behind the last that it has got."""
        message, waiting = values[self._message], values[self._waiting]
        is_reading = self._is_reading = message >= 0
        received = values[self._received]  # a message that was sent is of no use to the reader until it arrives
        travelling = np.where(received >= 0.0, np.fmax(self._of_inbox(sent + 1.0) - received, 0.0), 0.0)
        now = np.where(is_reading, message - 0.5, sent - travelling - waiting)
        if not self._alone.all():
            reads_it = self._is_reading = is_reading & (values[self._origin] == values[self._identity])
            left = travelling + waiting + is_reading
            now = np.where(self._alone | reads_it, now, self._divided(sent, left))
        self._reached = np.fmax(self._reached, np.fmin(now, sent))

    def _divided(self, sent: Floats, left: Floats) -> Floats:
        """Where a reader of several writers is with each: of what it has got since, as much as each has sent."""
        pending = np.maximum(sent - self._reached, 0.0)
        done = np.clip(1.0 - left / self._of_inbox(np.nan_to_num(pending)), 0.0, 1.0)
        reached: Floats = self._reached + np.where(np.isfinite(done), done, 0.0) * pending
        return reached

    def _of_inbox(self, of_edge: Floats) -> Floats:
        """By edge the sum over all edges that are read from the same queue."""
        total = np.bincount(self._inbox, of_edge, int(self._inbox.max(initial=-1)) + 1)
        return total.astype(np.float64, copy=False)[self._inbox]

    def _evened(self, rows: Floats, got: Floats) -> Floats:
        """Rows that wait on each edge.

        Of a writer with several readers it is known how many rows it has put out, not how many for whom. So what all
        readers have not taken yet waits for each by the part that its own messages have of it.
        """
        waiting = np.maximum(rows - got, 0.0)
        shared = self._share < 1.0
        if not shared.any():
            return waiting
        count = len(self.places)
        total = np.maximum(np.bincount(self._writer, rows - got, count), 0.0)[self._writer]
        behind: Floats = self._rows_behind + 1e-9
        part = behind / np.bincount(self._writer, behind, count)[self._writer]
        found: Floats = np.where(shared & np.isfinite(part), total * part, waiting)
        return found

    def _unsent(self, level: slice, values: Floats, put_out: Floats) -> Floats:
        """Rows in the message that each writer fills."""
        writer, filling = self._writer[level], self._filling[level]
        size = self.bytes_written[writer] / put_out[writer] + PREFIX
        rows = values[filling] / size
        return np.where((filling >= 0) & np.isfinite(rows), rows, 0.0)

    def _pass_on(self, rows: Ints, taken: Floats, put_out: Floats) -> None:
        """Stages that keep the number of rows: by the bytes that they have written, once a row's size is known."""
        of_stage, count = self._stage[rows], len(self.places)
        total, written = (np.bincount(of_stage, each[rows], count)[of_stage] for each in (taken, self.bytes_written))
        self.size_of_stage[rows] = so_far = np.where(total > ENOUGH, written / total, np.nan)
        passing = self._passes_on[rows]
        rows, so_far = rows[passing], so_far[passing]
        size = np.where(np.isnan(self._size[rows]), so_far, self._size[rows])
        counted = self.bytes_written[rows] / size
        put_out[rows] = taken[rows] = np.where(np.isfinite(counted), counted, taken[rows])

    def _correct(self, level: slice, taken: Floats, got: Floats) -> None:
        """What a task has taken in all, divided among the shuffles that it reads."""
        total = np.bincount(self._reader[level], got[level], len(taken))[self._reader[level]]
        scaled = got[level] * taken[self._reader[level]] / total
        got[level] = np.where(np.isfinite(scaled), scaled, got[level])

    def _outside(self, time: float, values: Floats) -> tuple[Floats, Floats]:
        """By task the rows that wait before its source, and how old those are that it takes now."""
        waiting, age = np.full(len(self.places), np.nan), np.full(len(self.places), np.nan)
        for task, offset, end, lag in self._sources:
            if values[offset] >= 0.0 and values[end] >= 0.0:
                lag.update(time, float(values[offset]), float(values[end]))
                first = math.isnan(waiting[task])
                waiting[task] = lag.waiting if first else waiting[task] + lag.waiting
                age[task] = lag.age if first else max(age[task], lag.age)
        return waiting, age

    def _latencies(
        self,
        time: float,
        times: Floats,
        rows: Floats,
        got: Floats,
        ages: Floats,
        source_ages: Floats,
    ) -> Floats:
        """By task how old the rows are that it takes now, of which the oldest count where it reads several shuffles.

        A row is as old as it was when it was written, which is what its writer's rows were then, and what it has waited
        since. `ages` are those at which rows were written; their last line is filled in.
        """
        found = np.where(self._is_reader, np.nan, source_ages)
        born = value_at(rows, np.broadcast_to(times[:, None], rows.shape), got, before=times[0])
        born[np.isnan(got)] = np.nan
        for level, _ in self._levels:
            ages[-1, level] = found[self._writer[level]]
            after = np.searchsorted(times, born[level])
            after = np.minimum(np.maximum(after, 1), len(times) - 1)
            before = np.maximum(after - 1, 0)
            part = (born[level] - times[before]) / (times[after] - times[before])
            part[~np.isfinite(part)] = 0.0
            numbers = self._numbers[level]
            then = ages[before, numbers] * (1.0 - part) + ages[after, numbers] * part
            np.fmax.at(found, self._reader[level], time - born[level] + then)
        return found

    def _mean_ages(
        self, time: float, times: Floats, rows: Floats, got: Floats, waiting: Floats, ages: Floats
    ) -> Floats:
        """By task the mean age of all rows that wait before it."""
        count = len(self.places)
        came = np.diff(np.maximum(rows, got), axis=0)
        part = np.divide(came, np.diff(rows, axis=0), out=np.zeros_like(came), where=came > 0.0)  # that waits still
        began = times[1:, None] - part * np.diff(times)[:, None]
        old = came * (time - 0.5 * (began + times[1:, None]) + 0.5 * (ages[1:] + ages[:-1]))
        old[came <= 0.0] = 0.0  # nothing of it waits, however old it is; of unknown age: the mean is unknown, too
        total = np.bincount(self._reader, np.where(np.isnan(came), 0.0, old).sum(axis=0), count)
        weight = np.bincount(self._reader, waiting, count)
        return np.where(self._is_reader, np.where(weight == 0.0, 0.0, total / weight), np.nan)


def _kept(count: int) -> Ints:
    """The readings that are kept of too many: of the older half every second one."""
    return np.concatenate([np.arange(0, count // 2, 2), np.arange(count // 2, count)])


def value_at(curve: Floats, values: Floats, where: Floats, before: float | None = None) -> Floats:
    """For each column: the value at which its curve, which never falls, reaches a height.

    Below the curve it is `before`, or on the line from nothing at all, at a height of -1, to where the curve begins.
    """
    below = np.maximum((curve <= where).sum(axis=0) - 1, 0)
    above = np.minimum(below + 1, len(curve) - 1)
    columns = np.arange(curve.shape[1])
    low, high = curve[below, columns], curve[above, columns]
    first, last = values[below, columns], values[above, columns]
    part = np.where(high > low, (where - low) / (high - low), 0.0)
    below_all = first * (where + 1.0) / (low + 1.0) if before is None else np.full(len(where), before)
    found = np.where(where < curve[0], below_all, first + part * (last - first))
    return np.where(np.isfinite(found), found, first)
