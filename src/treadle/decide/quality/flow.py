"""The graph to which promises refer: tasks, the streams between them, and the sinks with their promises.

A flow is one version of the graph of all applications together, as arrays; what depends on the graph alone is computed
once. It has p(t) and minAc(t) of Stream-Economics, section 3, and carries values of sinks to all tasks upstream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from treadle.errors import ConfigError
from treadle.model import Floats, Ints


class Promise(NamedTuple):
    """What a sink is promised: at least the share `accuracy` of its input. A higher priority is served first."""

    priority: float = 0.0
    accuracy: float = 0.0


class Lists(NamedTuple):
    """Many lists in two arrays: list n is `items[starts[n] : starts[n + 1]]`."""

    starts: Ints
    items: Ints


@dataclass(frozen=True, eq=False)
class Flow:
    """Tasks by number, streams as pairs of task numbers, and the task of each instance.

    A task that no other reads is a sink, which the paper calls a query. A sink without a promise has `Promise()`.
    """

    tasks: tuple[str, ...]
    start: Ints
    end: Ints
    task_of: Ints
    promises: Mapping[str, Promise]

    @classmethod
    def of(
        cls,
        inputs: Mapping[str, Sequence[str]],
        promises: Mapping[str, Promise],
        copies: Mapping[str, int] | None = None,
    ) -> Flow:
        """Create a flow from the tasks that each task reads, and the number of its instances (default: 1)."""
        number = {name: n for n, name in enumerate(inputs)}
        _check(inputs, promises, number)
        pairs = [(number[up], number[name]) for name, ups in inputs.items() for up in ups]
        table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        counts = [(copies or {}).get(name, 1) for name in inputs]
        task_of = np.repeat(np.arange(len(number)), counts)
        return cls(tuple(inputs), table[:, 0].copy(), table[:, 1].copy(), task_of, dict(promises))

    def __post_init__(self) -> None:
        _ = self.depth  # a cycle is an error at once

    def __len__(self) -> int:
        return len(self.tasks)

    @cached_property
    def sinks(self) -> Ints:
        return np.setdiff1d(np.arange(len(self)), self.start)

    @cached_property
    def sources(self) -> Ints:
        return np.setdiff1d(np.arange(len(self)), self.end)

    @cached_property
    def copies(self) -> Ints:
        """Task -> number of its instances."""
        return np.bincount(self.task_of, minlength=len(self))

    @cached_property
    def priority(self) -> Floats:
        """Eq. 1: the highest of all sinks that a task feeds."""
        return self.upstream(np.array([self._promise(sink).priority for sink in self.sinks]))

    @cached_property
    def minimum(self) -> Floats:
        """Eq. 2: the highest minimum accuracy of all sinks that a task feeds."""
        return self.upstream(np.array([self._promise(sink).accuracy for sink in self.sinks]))

    def upstream(self, of_sinks: Floats) -> Floats:
        """Task -> the highest value of all sinks that it feeds (Eq. 1, 2, 5 and 14)."""
        found = np.full(len(self), -np.inf)
        found[self.sinks] = of_sinks
        for edges in self._rising:
            np.maximum.at(found, self.start[edges], found[self.end[edges]])
        return found

    def downstream(self, local: Floats) -> Floats:
        """Task -> its own value times the lowest result of the tasks that it reads (Eq. 3)."""
        lowest = np.full(len(self), np.inf)
        found = local.copy()
        for edges in reversed(self._rising_by_end):
            start, end = self.start[edges], self.end[edges]
            np.minimum.at(lowest, end, found[start])
            found[end] = local[end] * lowest[end]
        return found

    def lowest_upstream(self, values: Floats) -> Floats:
        """Task -> the lowest value of the tasks that it reads; 1 where it reads none."""
        found = np.ones(len(self))
        found[self.end] = np.inf
        np.minimum.at(found, self.end, values[self.start])
        return found

    @cached_property
    def reaches(self) -> Lists:
        """Task -> the sinks that it feeds, as positions in `sinks`."""
        position = np.full(len(self), -1)
        position[self.sinks] = np.arange(len(self.sinks))
        found: list[set[int]] = [{p} if p >= 0 else set() for p in position.tolist()]
        for edges in self._rising:
            for s, e in zip(self.start[edges].tolist(), self.end[edges].tolist(), strict=True):
                found[s] |= found[e]
        starts = np.concatenate([[0], np.cumsum([len(each) for each in found])]).astype(np.int64)
        return Lists(starts, np.array([sink for each in found for sink in sorted(each)], dtype=np.int64))

    @cached_property
    def depth(self) -> Ints:
        """Task -> the number of streams on its longest path to a sink."""
        depth = np.zeros(len(self), dtype=np.int64)
        while True:
            longer = depth.copy()
            np.maximum.at(longer, self.start, depth[self.end] + 1)
            if np.array_equal(longer, depth):
                return depth
            if longer.max() >= len(self):
                name = self.tasks[int(longer.argmax())]
                raise ConfigError(f"task '{name}' feeds itself through others", remedy="cut one of its streams")
            depth = longer

    @cached_property
    def _rising(self) -> tuple[Ints, ...]:
        """The streams grouped by the depth of their start, the lowest first."""
        return _by(self.depth[self.start])

    @cached_property
    def _rising_by_end(self) -> tuple[Ints, ...]:
        return _by(self.depth[self.end])

    def _promise(self, task: int) -> Promise:
        return self.promises.get(self.tasks[task], Promise())


def _by(keys: Ints) -> tuple[Ints, ...]:
    """Return an array for each distinct key, in ascending order: the positions at which it occurs."""
    order = np.argsort(keys, kind="stable")
    return tuple(np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)) if len(keys) else ()


def _check(inputs: Mapping[str, Sequence[str]], promises: Mapping[str, Promise], number: Mapping[str, int]) -> None:
    for name, ups in inputs.items():
        for up in ups:
            if up not in number:
                raise ConfigError(f"reads '{up}', which does not exist", where=f"task '{name}'", remedy="name a task")
    read = {up for ups in inputs.values() for up in ups}
    for name, promise in promises.items():
        where = f"promise of '{name}'"
        if name not in number:
            raise ConfigError("there is no such task", where=where, remedy=f"known: {', '.join(number)}")
        if name in read:
            raise ConfigError(
                "is not a sink: other tasks read it", where=where, remedy="give the promise to the sinks that it feeds"
            )
        if not 0.0 <= promise.accuracy <= 1.0:
            raise ConfigError(f"its accuracy is {promise.accuracy}", where=where, remedy="give 0 to 1, as 0.9")
        if not np.isfinite(promise.priority):
            raise ConfigError(f"its priority is {promise.priority}", where=where, remedy="give a number")
