"""Decides which query's tasks get the next free task slot of Spark, for queries in micro-batches.

A task of some milliseconds ends before a round could change the priority of its thread, so the priority of its query
must count when the task starts. Spark itself starts tasks in the order of their jobs (FIFO). Here the order is that of
stride scheduling: each query's CPU time is divided by its weight, and the query with the smallest result comes first.
The weights are those by which the kernel divides a CPU, so a query gets the same share of the slots as of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Self

import numpy as np

from treadle.attachment.policies.around import Seen
from treadle.decide.transform import NICE_STEP, Scale
from treadle.engines.spark.engine import SparkEngine
from treadle.loop import Binding
from treadle.model import Topology
from treadle.values import Schedule

STEPS = {"nice": 1.0 / NICE_STEP, "rt": NICE_STEP}
"""By knob scale: the factor by which a query's weight changes when its value on the scale, such as nice, grows by 1.

On all other scales the values are weights already."""


class Ordering:
    """The task order of all applications, from the last decision of a policy."""

    def __init__(self, decided: Seen, scale: Scale) -> None:
        self._decided, self._scale = decided, scale
        self._last: object = None
        self._of: dict[SparkEngine, TaskOrder] = {}

    @classmethod
    def of(cls, bindings: list[Binding], number: int | None) -> Self | None:
        """Make an ordering from binding `number`, which is replaced by a binding that keeps its last decision.

        None without a number.
        """
        if number is None:
            return None
        decided = Seen(bindings[number].policy)
        bindings[number] = replace(bindings[number], policy=decided)
        return cls(decided, bindings[number].to_scale)

    def update(self, engines: Iterable[SparkEngine]) -> None:
        """Update all applications after a round."""
        last = self._decided.last
        if last is None or last is self._last:
            return
        self._last = last
        self._of = {each: self._of.get(each) or TaskOrder(each, self._scale) for each in engines}
        for order in self._of.values():
            order.update(last[0].topology, last[1])


class TaskOrder:
    """The task order of one application. `scale` is that of the knob by which its threads are scheduled."""

    def __init__(self, engine: SparkEngine, scale: Scale) -> None:
        self._engine, self._scale = engine, scale
        self._used: dict[str, float] = {}
        self._strides: dict[str, float] = {}
        """By run: CPU seconds divided by weight, counted from the smallest stride when the run was first seen."""

    def update(self, topology: Topology, schedule: Schedule) -> None:
        """Set the order after a decision. If all queries have the same weight, the order is Spark's own."""
        rows = self._engine.batch_rows
        weights = self._weights(topology, schedule, rows)
        self._follow(weights, rows)
        ordered = sorted(weights, key=lambda run: (self._strides[run], -weights[run], run))
        self._engine.agents.task_order = tuple(ordered) if len(set(weights.values())) > 1 else ()

    def _weights(self, topology: Topology, schedule: Schedule, rows: Mapping[str, int]) -> dict[str, float]:
        """Return the weight of each run with a decided priority. The topology may contain several engines."""
        values = self._scale.apply(schedule.scalar, schedule.spacing)
        if (step := STEPS.get(self._scale.name)) is not None:
            values = step**values
        instances = enumerate(topology.instances)
        first = next((row for row, each in instances if each.engine == self._engine.name), len(topology))
        found = {run: float(values[first + row]) for run, row in rows.items() if first + row < len(values)}
        return {run: weight for run, weight in found.items() if np.isfinite(weight) and weight > 0.0}

    def _follow(self, weights: Mapping[str, float], runs: Iterable[str]) -> None:
        """Advance the strides. A query that is new, had no weight or has no batch starts at the least other stride."""
        batches = self._engine.batches
        used = {run: batches[run].cpu_time for run in weights if run in batches}
        went_on = {run for run in used if run in self._used}
        for run in went_on:
            self._strides[run] = self._strides.get(run, 0.0) + (used[run] - self._used[run]) / weights[run]
        # Who waits for a turn has rows and no job, and keeps what is owed to it.
        wants = {run for run in went_on if batches[run].works or batches[run].queue > 0}
        ahead = [self._strides[run] for run in wants] or list(self._strides.values())
        least = min(ahead, default=0.0)
        for run in weights:
            if run not in wants:
                self._strides[run] = max(self._strides.get(run, least), least)
        self._strides = {run: stride for run, stride in self._strides.items() if run in set(runs)}
        self._used = used
