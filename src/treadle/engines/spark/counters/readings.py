"""One reading of the counter columns of all tasks, turned into rows in, rows out, backlog and ages.

Earlier readings form curves, one for each edge: a pair of a task that writes a shuffle and a task that reads it. The
module docstring of `live` explains the use of curves.
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
"""Maximum number of readings in a curve. Beyond it, every second one of the older half is dropped."""
MOST_PLACES = 1 << 15
"""Maximum number of places of which counts of finished jobs are kept; beyond it, all are dropped."""
PREFIX = 4
"""Bytes of the length field before each row in a message."""
ENOUGH = 2_000
"""Number of rows of a stage after which their mean size is known well enough to compute rows from bytes."""


class Located(NamedTuple):
    """The job and place of a task, and the metrics that count its rows."""

    job: int
    place: Place
    counters: StageCounters


class Reading(NamedTuple):
    """The values of all tasks at one time; NaN: unknown. Counts include earlier batches at the same place."""

    time: float
    places: tuple[Place, ...]
    taken: Floats
    """Rows that each task has taken in."""
    put_out: Floats
    queue: Floats
    """Rows that wait in the shuffles that the task reads; unknown for a task that reads a source."""
    head_age: Floats
    """Seconds since the oldest waiting row entered the system, for a task that reads a source the oldest row in the
    source; 0 if none waits."""
    mean_age: Floats
    """Seconds since the waiting rows entered the system, on average; 0 if none waits, NaN without a shuffle to read."""
    latency: Floats
    """Seconds since the rows that the task takes in now entered the system."""
    output_queue: Floats
    """Rows that the task has put out, but that are still in its buffers."""
    external_queue: Floats
    """Rows that wait outside of the engine for a task that reads a source."""


@dataclass
class Past:
    """The counts of finished jobs, by `Place` (run, stage and partition of a task)."""

    rows: dict[Place, tuple[float, float]] = field(default_factory=dict)
    """Rows taken in and put out."""
    sizes: dict[tuple[str, int], float] = field(default_factory=dict)
    """By run and position of a stage, the mean size in bytes of the rows that the stage wrote."""
    lags: dict[tuple[Place, str], SourceLag] = field(default_factory=dict)
    """By place and column; a lag continues from batch to batch."""

    def add(self, wired: TaskColumns, running: Collection[int]) -> None:
        """Add the final counts of the jobs that no longer run."""
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
    """The counter columns of a set of tasks, and the curves of what these tasks have written since they started."""

    def __init__(
        self, tasks: Sequence[Task], located: Sequence[Located | None], past: Past, before: TaskColumns | None
    ) -> None:
        self.located = tuple(located)
        self.last: Reading | None = None
        self.bytes_written = np.full(len(tasks), np.nan)
        self.size_of_stage = np.full(len(tasks), np.nan)
        """By task, the mean size in bytes of the rows that its stage has written in this job; NaN below `ENOUGH`."""
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
        """By edge, a number for its reader's queue of the shuffle: all writers of this shuffle share the queue."""
        self._seen = self._of_inbox(np.ones(len(edges)))
        """By edge, how many writers of the reader's queue are among these tasks."""
        self._is_reader = np.zeros(len(tasks), dtype=np.bool_)
        self._is_reader[self._reader] = True
        self._numbers = np.arange(len(edges))
        starts = np.flatnonzero(np.diff(depth[self._reader], prepend=-1))
        levels = [slice(*each) for each in pairwise([*starts.tolist(), len(edges)])]
        self._levels = [(level, np.unique(self._reader[level])) for level in levels]
        """Slices of edges with readers equally far from the sources, and the readers of each slice."""
        self._times: Floats = np.zeros(0) if before is None else before._times
        memory, count = len(self._times), len(edges)
        self._curves = np.zeros((4, memory, count))
        """Four values by time and edge: number of the last message sent, rows put out, rows sent, and the age of the
        rows written at that time."""
        self._curves[0] = -1.0
        self._reached = np.full(count, -1.0)
        self._is_reading = np.zeros(count, dtype=np.bool_)
        """By edge, whether the reader is inside a message of this writer."""
        self._rows_behind = np.zeros(count)
        """By edge, the waiting rows, computed from message numbers."""
        if before is not None:
            same = [(at, before._keys[key]) for key, at in self._keys.items() if key in before._keys]
            new, old = np.array(same, dtype=np.int64).reshape(-1, 2).T
            self._curves[:, :, new] = before._curves[:, :, old]
            self._reached[new] = before._reached[old]

    def read(self, time: float, values: Floats) -> Reading:
        """Compute the reading at `time`. The last of `values` must be NaN: index -1 stands for a missing column."""
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
            for curve in (rows, rows_sent):  # the two counters are read at slightly different times
                curve[-1, level] = np.fmax(curve[-1, level], curve[-2:, level].max(axis=0))
            got[level] = value_at(all_sent[:, level], rows_sent[:, level], self._reached[level])
            # With writers in processes that we do not read (on other hosts), rows can't be assigned to writers.
            got[level][values[self._writers[level]] > self._seen[level]] = np.nan
            self._rows_behind[level] = np.maximum(rows[-1, level] - got[level], 0.0)
            np.add.at(taken, self._reader[level], got[level])
            self._pass_on(readers, taken, put_out)
            self._correct(level, taken, got)
        # The writer's counters may be older than the reader's: a reader inside a message has at least one row to do.
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
        """Compute the rows in and out of tasks of a finished job: its readers have taken in all that was put out."""
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
        """Update each reader's position: the middle of the message that it processes, or the end of the last one."""
        message, waiting = values[self._message], values[self._waiting]
        is_reading = self._is_reading = message >= 0
        received = values[self._received]  # a message that was sent is in transit until the reader receives it
        travelling = np.where(received >= 0.0, np.fmax(self._of_inbox(sent + 1.0) - received, 0.0), 0.0)
        now = np.where(is_reading, message - 0.5, sent - travelling - waiting)
        if not self._alone.all():
            reads_it = self._is_reading = is_reading & (values[self._origin] == values[self._identity])
            left = travelling + waiting + is_reading
            now = np.where(self._alone | reads_it, now, self._divided(sent, left))
        self._reached = np.fmax(self._reached, np.fmin(now, sent))

    def _divided(self, sent: Floats, left: Floats) -> Floats:
        """Compute the positions of a reader with several writers: assume that it has done the same share for each."""
        pending = np.maximum(sent - self._reached, 0.0)
        done = np.clip(1.0 - left / self._of_inbox(np.nan_to_num(pending)), 0.0, 1.0)
        reached: Floats = self._reached + np.where(np.isfinite(done), done, 0.0) * pending
        return reached

    def _of_inbox(self, of_edge: Floats) -> Floats:
        """Return, by edge, the sum over all edges of the same queue (`_inbox`)."""
        total = np.bincount(self._inbox, of_edge, int(self._inbox.max(initial=-1)) + 1)
        return total.astype(np.float64, copy=False)[self._inbox]

    def _evened(self, rows: Floats, got: Floats) -> Floats:
        """Compute the rows that wait on each edge.

        For a writer with several readers, only the total number of rows out is known. So all rows that its readers have
        not taken yet are divided among its edges in proportion to `_rows_behind`.
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
        """Compute, by edge of this level, the rows in the message that the writer is filling and has not sent."""
        writer, filling = self._writer[level], self._filling[level]
        size = self.bytes_written[writer] / put_out[writer] + PREFIX
        rows = values[filling] / size
        return np.where((filling >= 0) & np.isfinite(rows), rows, 0.0)

    def _pass_on(self, rows: Ints, taken: Floats, put_out: Floats) -> None:
        """Compute the rows of tasks whose stage puts out as many rows as it takes in.

        These are the bytes written divided by the mean size of a row; as long as that is unknown, the rows taken in.
        """
        of_stage, count = self._stage[rows], len(self.places)
        total, written = (np.bincount(of_stage, each[rows], count)[of_stage] for each in (taken, self.bytes_written))
        self.size_of_stage[rows] = so_far = np.where(total > ENOUGH, written / total, np.nan)
        passing = self._passes_on[rows]
        rows, so_far = rows[passing], so_far[passing]
        size = np.where(np.isnan(self._size[rows]), so_far, self._size[rows])
        counted = self.bytes_written[rows] / size
        put_out[rows] = taken[rows] = np.where(np.isfinite(counted), counted, taken[rows])

    def _correct(self, level: slice, taken: Floats, got: Floats) -> None:
        """Scale `got` so that a task's shuffles add up to the rows that it has taken in."""
        total = np.bincount(self._reader[level], got[level], len(taken))[self._reader[level]]
        scaled = got[level] * taken[self._reader[level]] / total
        got[level] = np.where(np.isfinite(scaled), scaled, got[level])

    def _outside(self, time: float, values: Floats) -> tuple[Floats, Floats]:
        """Return, by task, the rows that wait in its source, and the age of the next row to be read."""
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
        """Compute, by task, the age of the rows that it takes in now; of several shuffles, the age of the oldest rows.

        The age of a row is the age of the writer's rows at the time of writing, plus the time that the row has waited
        since. `ages` has these ages by time of writing and edge; this method fills in its last line.
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
        """Compute, by task, the mean age of all rows that wait for it."""
        count = len(self.places)
        came = np.diff(np.maximum(rows, got), axis=0)
        part = np.divide(came, np.diff(rows, axis=0), out=np.zeros_like(came), where=came > 0.0)  # still waiting
        began = times[1:, None] - part * np.diff(times)[:, None]
        old = came * (time - 0.5 * (began + times[1:, None]) + 0.5 * (ages[1:] + ages[:-1]))
        old[came <= 0.0] = 0.0  # nothing waits, so no age is needed; else an unknown age makes the mean unknown
        total = np.bincount(self._reader, np.where(np.isnan(came), 0.0, old).sum(axis=0), count)
        weight = np.bincount(self._reader, waiting, count)
        return np.where(self._is_reader, np.where(weight == 0.0, 0.0, total / weight), np.nan)


def _kept(count: int) -> Ints:
    """Return the indices of the readings to keep: every second one of the older half, and all of the newer half."""
    return np.concatenate([np.arange(0, count // 2, 2), np.arange(count // 2, count)])


def value_at(curve: Floats, values: Floats, where: Floats, before: float | None = None) -> Floats:
    """Return for each column the interpolated entry of `values` at the point where its `curve` reaches `where`.

    A curve never falls. If `where` is below the start of a curve, the result is `before`; without `before` it is
    interpolated between the value 0 at `where` = -1 and the first value of the column.
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
