"""Consistency checks between the metrics of an engine: they detect a driver that guesses one of them.

Data rows are conserved: an operator's queue holds the rows that its upstreams have put out and it has not taken in. The
instances of an operator are summed up, since it is unknown how a stream is divided among them. Values that are unknown
or marked as estimates are left out.

Two values of one sample may be read up to `apart` seconds after each other. Counters never fall, so a counter that was
read up to `apart` earlier or later lies between its values in the samples around that time: these bound a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from treadle.model import Bools, Floats, Ints, Topology
from treadle.observe.graph import received
from treadle.testing._demand import demand
from treadle.values import Sample

Look = tuple[Topology, Sample]
NOT_NEGATIVE = ("tuples_in", "tuples_out", "queue", "external_queue", "output_queue", "head_age", "mean_age", "latency")
ROUNDING = 1e-9
"""The relative error that sums of floats may have."""
INSTANT = 1e-6
"""A difference of up to this many seconds, or rows, counts as zero."""


def check_agreement(looks: Sequence[Look], apart: float, who: str) -> None:
    """Run all checks on the samples of a run, which are in the order of time."""
    for topology, sample in looks:
        _check_signs(topology, sample, who)
        _check_empty(topology, sample, who)
    for _, stretch in groupby(looks, lambda look: (look[0].ids, look[0].queries)):
        course = _Course(list(stretch), apart)
        _check_queues(course, who)
        _check_arrivals(course, who)
        _check_ages(course, who)


def _check_signs(topology: Topology, sample: Sample, who: str) -> None:
    for name in NOT_NEGATIVE:
        for row in np.flatnonzero(_measured(topology, sample, name) < 0.0)[:1]:
            value = sample.columns[name][row]
            demand(False, who, f"'{name}' of '{topology.ids[row]}' is {value:g} at the time {sample.time:g}")


def _check_empty(topology: Topology, sample: Sample, who: str) -> None:
    """Ages must be 0 if no row waits. For a source, rows in the external queue wait, too."""
    outside = sample.columns.get("external_queue", np.zeros(len(topology))) > 0.0
    is_empty = (_measured(topology, sample, "queue") == 0.0) & ~(topology.is_source & outside)
    for name in ("head_age", "mean_age"):
        for row in np.flatnonzero(is_empty & (_measured(topology, sample, name) > 0.0))[:1]:
            age = sample.columns[name][row]
            said = f"'{topology.ids[row]}' has an empty queue at the time {sample.time:g}, but '{name}' is {age:g}"
            demand(False, who, said)


class _Course:
    """The samples of one topology: a `column` is an array with a line per sample and, in each, a value per instance."""

    def __init__(self, looks: Sequence[Look], apart: float) -> None:
        self.topology = looks[0][0]
        self.apart = apart
        self.times = np.array([sample.time for _, sample in looks])
        self._looks = looks
        count = np.arange(len(looks))
        self.early: Ints = np.searchsorted(self.times, self.times - apart, "right") - 1 if apart else count
        """For each sample the last one at least `apart` before it; -1 if there is none."""
        self.late: Ints = np.searchsorted(self.times, self.times + apart) if apart else count
        """For each sample the first one at least `apart` after it; the number of samples if there is none."""
        self.judged = np.flatnonzero((self.early >= 0) & (self.late < len(looks)))

    def column(self, name: str) -> Floats:
        return np.array([_measured(topology, sample, name) for topology, sample in self._looks])


class _Operators(NamedTuple):
    """Sums columns over the instances of each operator; `of_row` has the operator's number for each instance."""

    names: list[str]
    of_row: Ints

    def sums(self, columns: Floats) -> Floats:
        return np.array([np.bincount(self.of_row, line, len(self.names)) for line in columns])


def _operators(topology: Topology) -> _Operators:
    names = [f"{each.query}.{'+'.join(each.operators)}" for each in topology.instances]
    known = list(dict.fromkeys(names))
    at = {name: number for number, name in enumerate(known)}
    return _Operators(known, np.array([at[name] for name in names], dtype=np.int64))


def _check_queues(course: _Course, who: str) -> None:
    """A queue holds what was put out and not taken in; rows in an upstream's output queue may count or not."""
    topology, operators = course.topology, _operators(course.topology)
    given = np.array([received(topology, line) for line in course.column("tuples_out")])
    given[:, ~_fed_by_ends(topology)] = np.nan
    under_way = np.array([received(topology, line) for line in np.nan_to_num(course.column("output_queue"))])
    came, moving = operators.sums(given), operators.sums(np.nan_to_num(under_way))
    taken, queue = operators.sums(course.column("tuples_in")), operators.sums(course.column("queue"))
    for look in course.judged:
        early, late = course.early[look], course.late[look]
        slack = ROUNDING * came[late] + INSTANT
        low = came[early] - taken[late] - moving[early : late + 1].max(axis=0) - slack
        high = came[late] - taken[early] + slack
        for at in np.flatnonzero((queue[look] < low) | (queue[look] > high))[:1]:
            said = (
                f"'{operators.names[at]}' has a queue of {queue[look, at]:g} at the time {course.times[look]:g},"
                f" but {came[look, at]:g} rows were put out for it and it has taken in {taken[look, at]:g}"
            )
            bounds = f"; within {course.apart:g} s that is {max(0.0, low[at]):.1f} to {high[at]:.1f}"
            demand(False, who, said + (bounds if course.apart else ""))


def _check_arrivals(course: _Course, who: str) -> None:
    """A source's rows taken in plus its external queue are all rows that ever arrived: this sum never falls."""
    operators = _operators(course.topology)
    taken = operators.sums(course.column("tuples_in"))
    outside = operators.sums(np.where(course.topology.is_source, course.column("external_queue"), np.nan))
    for before, look in zip(course.judged[:-1], course.judged[1:], strict=True):
        least, most = outside[before] + taken[course.early[before]], outside[look] + taken[course.late[look]]
        for at in np.flatnonzero(most < least - ROUNDING * least - INSTANT)[:1]:
            said = (
                f"'{operators.names[at]}' has an external queue of {outside[before, at]:g} at the time"
                f" {course.times[before]:g} and of {outside[look, at]:g} at {course.times[look]:g}, but has taken"
                f" in {taken[look, at] - taken[before, at]:g} rows in between"
            )
            demand(False, who, said)


def _check_ages(course: _Course, who: str) -> None:
    """A row that waits in two samples is older in the later one by the time between both."""
    queue, taken, age = (course.column(name) for name in ("queue", "tuples_in", "head_age"))
    for number, before in enumerate(course.judged):
        for look in course.judged[number + 1 :]:
            passed = course.times[look] - course.times[before] - 2.0 * course.apart
            went = taken[course.late[look]] - taken[course.early[before]]
            least = np.where(went == 0.0, age[before], 0.0) + passed
            stays = (went < queue[before] - INSTANT) & (queue[look] > 0.0)
            for row in np.flatnonzero(stays & (age[look] < least - INSTANT))[:1]:
                said = (
                    f"'head_age' of '{course.topology.ids[row]}' is {age[look, row]:g} at the time"
                    f" {course.times[look]:g}, but of the {queue[before, row]:g} rows that waited at"
                    f" {course.times[before]:g} it has taken in {went[row]:g}"
                )
                demand(False, who, said)


def _fed_by_ends(topology: Topology) -> Bools:
    """Mask of the instances whose upstream operators are all the last of their instances.

    The output of other operators of a fused instance is not counted.
    """
    ends = {(each.query, each.operators[-1]) for each in topology.instances}
    cut_off = {
        (query.name, op.name)
        for query in topology.queries
        for op in query.operators
        if any((query.name, up) not in ends for up in op.upstream)
    }
    return np.array([(each.query, each.operators[0]) not in cut_off for each in topology.instances], dtype=np.bool_)


def _measured(topology: Topology, sample: Sample, name: str) -> Floats:
    """The column of a metric; NaN where the metric was not sampled or is an estimate."""
    column = sample.columns.get(name)
    if column is None:
        return np.full(len(topology), np.nan)
    return np.where(sample.estimated.get(name, False), np.nan, column)
