"""Rates of rows over time, with an exact integral: how many rows are due until a moment, and when each row is due.

Times are whole microseconds, and rates are whole thousandths of a row per second. So all sums are whole billionths of a
row, and nothing is rounded. A row is due when the integral reaches its mark: the marks of even arrivals are 1, 2, 3, …
rows, those of Poisson arrivals have exponential distances. All of this is arithmetic; no clock is read.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from treadle.errors import ConfigError

SECOND = 1_000_000
"""Microseconds in a second."""
ROW = 1_000_000_000
"""One row in the unit of the integral."""
_FAR = 2**62
_BLOCK = 16_384
"""Number of Poisson arrivals that are drawn at once."""

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Rate:
    """Constant rates one after another. A step is its length in microseconds, and a rate in thousandths of a row/s.

    If `repeated`, the steps begin again after the last one. Otherwise the rate of the last one never ends.
    """

    steps: tuple[tuple[int, int], ...]
    repeated: bool = False

    def __post_init__(self) -> None:
        if not self.steps or any(length < 1 or rate < 0 for length, rate in self.steps):
            remedy = "give at least one step, each with a length above 0 and a rate of at least 0"
            raise ConfigError(f"{self.steps} are not the steps of a rate", remedy=remedy)

    @cached_property
    def mean(self) -> float:
        """The mean rate over all steps, in rows per second."""
        return self._before[-1] / self._begins[-1] / (ROW / SECOND)

    def due(self, until: int) -> int:
        """The integral from 0 to `until`, in billionths of a row."""
        whole, rest = divmod(max(0, until), self._begins[-1]) if self.repeated else (0, max(0, until))
        step = min(bisect_right(self._begins, rest), len(self.steps)) - 1
        return whole * self._before[-1] + self._before[step] + self.steps[step][1] * (rest - self._begins[step])

    def times(self, base: int, offsets: Whole) -> Whole:
        """The first microseconds at which the integral is `base` plus each offset. Both are billionths of a row.

        Offsets ascend. Each of these values is above 0 and must be reached at some time.
        """
        found = np.empty(len(offsets), np.int64)
        done = 0
        while done < len(offsets):
            whole, step = self._reaching(base + int(offsets[done]))
            begin, before = whole * self._begins[-1] + self._begins[step], whole * self._before[-1] + self._before[step]
            rate = self.steps[step][1]
            last = len(offsets)
            if self.repeated or step + 1 < len(self.steps):
                end = whole * self._before[-1] + self._before[step + 1]
                last = int(np.searchsorted(offsets, min(end - base, _FAR), side="right"))
            # Division of the large, common part as Python integers keeps the rest within 64 bits.
            common, rest = divmod(base - before, rate)
            found[done:last] = begin + common - (-(offsets[done:last] + rest) // rate)  # rounded up
            done = last
        return found

    def _reaching(self, value: int) -> tuple[int, int]:
        """Which repetition and which step of it reaches this value of the integral."""
        whole = (value - 1) // self._before[-1] if self.repeated else 0
        step = bisect_left(self._before, value - whole * self._before[-1])
        return whole, min(step, len(self.steps)) - 1

    @cached_property
    def _begins(self) -> list[int]:
        """When each step begins, and the end of the last one."""
        return list(accumulate((length for length, _ in self.steps), initial=0))

    @cached_property
    def _before(self) -> list[int]:
        """The integral before each step, and after the last one."""
        return list(accumulate((length * rate for length, rate in self.steps), initial=0))


def constant(rate: float) -> Rate:
    """The same rate for ever, in rows per second."""
    return Rate(((SECOND, _thousandths(rate)),))


def stepped(steps: Sequence[tuple[float, float]]) -> Rate:
    """Steps of (seconds, rate). The last rate goes on for ever."""
    return Rate(tuple((_micros(seconds), _thousandths(rate)) for seconds, rate in steps))


def bursty(rate: float, on: float, off: float) -> Rate:
    """Repeatedly `rate` for `on` seconds, then nothing for `off` seconds."""
    return Rate(((_micros(on), _thousandths(rate)), (_micros(off), 0)), repeated=True)


def trace(points: Sequence[tuple[float, float]], *, period: float | None = None) -> Rate:
    """Points of (time, rate) in ascending order: each rate holds until the next time. After `period` all is repeated.

    Only distances between times count. Without a period, the last rate holds as long as the one before it.
    """
    if len(points) < (2 if period is None else 1):
        raise ConfigError("a trace needs two points", remedy="give more points, or one and a period")
    times = [time for time, _ in points]
    end = 2 * times[-1] - times[-2] if period is None else times[0] + period
    steps = zip(points, [*times[1:], end], strict=True)
    return Rate(tuple((_micros(after - time), _thousandths(rate)) for (time, rate), after in steps), repeated=True)


def as_rate(given: float | Rate) -> Rate:
    """The rate itself, or a constant one."""
    return given if isinstance(given, Rate) else constant(given)


def from_json(given: dict[str, Any]) -> Rate:
    """The rate that `dataclasses.asdict` and JSON have made a dictionary of."""
    return Rate(tuple((int(length), int(rate)) for length, rate in given["steps"]), bool(given["repeated"]))


class Arrivals(Protocol):
    """The marks of the rows: values of the integral, ascending, in billionths of a row."""

    def count(self, due: int) -> int:
        """The number of marks up to this value."""

    def marks(self, first: int, count: int) -> tuple[int, Whole]:
        """The marks of rows from `first` on, as a base and offsets to it. Rows before `first` may be forgotten."""


class Even:
    """Rows in equal distances of the integral."""

    def count(self, due: int) -> int:
        return due // ROW

    def marks(self, first: int, count: int) -> tuple[int, Whole]:
        return (first + 1) * ROW, np.arange(count, dtype=np.int64) * ROW


class Poisson:
    """Poisson arrivals: exponential distances of the integral with a mean of one row."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng([1, seed])  # makers use the seed alone
        self._first = 0
        self._base = 0
        self._offsets: Whole = np.empty(0, np.int64)
        """The marks of rows from `_first` on, less `_base`."""

    def count(self, due: int) -> int:
        while not len(self._offsets) or self._base + int(self._offsets[-1]) <= due:
            self._draw()
        return self._first + int(np.searchsorted(self._offsets, due - self._base, side="right"))

    def marks(self, first: int, count: int) -> tuple[int, Whole]:
        if first - self._first >= _BLOCK:
            gone = first - self._first
            step = int(self._offsets[gone - 1])
            self._first, self._base, self._offsets = first, self._base + step, self._offsets[gone:] - step
        begin = first - self._first
        while len(self._offsets) < begin + count:
            self._draw()
        return self._base, self._offsets[begin : begin + count]

    def _draw(self) -> None:
        distances = np.rint(self._random.exponential(ROW, _BLOCK)).astype(np.int64)
        last = int(self._offsets[-1]) if len(self._offsets) else 0
        self._offsets = np.concatenate([self._offsets, last + np.cumsum(np.maximum(distances, 1))])


class Schedule:
    """When the rows of one target are due, with rates that replace one another."""

    def __init__(self, rate: Rate, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._begins = [0]
        self._before = [0]
        self._rates = [rate]

    def change(self, at: int, rate: Rate) -> None:
        """Let another rate begin at this time, which is not before the last change."""
        self._before.append(self.due(at))
        self._begins.append(at)
        self._rates.append(rate)

    def due(self, until: int) -> int:
        """The integral of all rates until this time, in billionths of a row."""
        part = max(0, bisect_right(self._begins, until) - 1)
        return self._before[part] + self._rates[part].due(until - self._begins[part])

    def rows(self, until: int) -> int:
        """The number of rows that are due until this time, inclusive."""
        return self._arrivals.count(self.due(until))

    def times(self, first: int, count: int) -> Whole:
        """When each of `count` rows from number `first` on is due. Earlier rows may not be asked for again."""
        base, marks = self._arrivals.marks(first, count)
        found = np.empty(count, np.int64)
        done = 0
        while done < count:
            part = bisect_left(self._before, base + int(marks[done])) - 1
            last = count
            if part + 1 < len(self._before):
                last = int(np.searchsorted(marks, self._before[part + 1] - base, side="right"))
            times = self._rates[part].times(base - self._before[part], marks[done:last])
            found[done:last] = self._begins[part] + times
            done = last
        return found


def _micros(seconds: float) -> int:
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{seconds} is not a length of time", remedy="give seconds above 0")
    return round(seconds * SECOND)


def _thousandths(rate: float) -> int:
    if not 0 <= rate < math.inf:
        raise ConfigError(f"{rate} is not a rate", remedy="give rows per second, at least 0")
    return round(rate * 1000)
