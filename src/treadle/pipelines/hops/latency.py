"""Latency of rows when they leave a sink, estimated from the number of rows and the arrival times of each batch.

Rows are not tracked one by one. A batch consists of parts, for each of which only the oldest and the mean arrival time
are known; arrivals within a part are assumed to be uniform. Parts are small, so percentiles are precise.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from treadle.model import Floats

POINTS = 16
"""Number of points that stand for the rows of a part in percentiles; fewer if there are many parts."""
MOST_POINTS = 100_000


class Summary(NamedTuple):
    """Latencies in seconds, weighted by rows; NaN where there were none."""

    rows: int
    mean: float
    p50: float
    p99: float
    max: float


class Part(NamedTuple):
    """Rows that left a sink together: when, how many, and their highest and mean latency in seconds."""

    time: float
    rows: float
    oldest: float
    mean: float


class Latency:
    """The latencies of a sink's rows: its latest parts, at most `keep`. Different threads may write and read them."""

    def __init__(self, keep: int = 100_000) -> None:
        self._keep = keep
        self._table = np.empty((min(keep, 1024), len(Part._fields)))
        self._count = 0
        self._total = (0, 0.0)
        self._lock = threading.Lock()

    def add(self, time: float, ages: Iterable[Sequence[float]]) -> None:
        """Add a finished batch: for each part its rows, and their oldest and mean arrival time in microseconds.

        All times are wall-clock times, since rows come from other processes; if the clock was set back, latency is 0.
        """
        parts = [
            (time, n, max(0.0, time - oldest / 1e6), max(0.0, time - mean / 1e6)) for n, oldest, mean in ages if n > 0
        ]
        with self._lock:
            for part in parts:
                if self._count == len(self._table) < self._keep:
                    self._table = np.resize(self._table, (min(2 * self._count, self._keep), len(part)))
                self._table[self._count % len(self._table)] = part
                self._count += 1
                self._total = (self._total[0] + int(part[1]), self._total[1] + part[1] * part[3])

    @property
    def total(self) -> tuple[int, float]:
        """The number of all rows so far, and the sum of their latencies in seconds."""
        return self._total

    def parts(self, since: float = -np.inf) -> list[Part]:
        """The parts that left the sink since that time."""
        return [Part(time, int(rows), oldest, mean) for time, rows, oldest, mean in self._since(since).tolist()]

    def summary(self, since: float = -np.inf) -> Summary:
        return _summary(self._since(since))

    def _since(self, since: float) -> Floats:
        with self._lock:
            full = self._count >= len(self._table)
            kept = np.roll(self._table, -self._count, axis=0) if full else self._table[: self._count].copy()
        return kept[kept[:, 0] >= since]


def summarise(parts: Sequence[Part]) -> Summary:
    """Summarise all parts together."""
    return _summary(np.array(parts, dtype=np.float64).reshape(-1, len(Part._fields)))


def _summary(parts: Floats) -> Summary:
    if not len(parts):
        return Summary(0, np.nan, np.nan, np.nan, np.nan)
    _, rows, oldest, mean = parts.T
    youngest = np.maximum(2.0 * mean - oldest, 0.0)  # arrivals are uniform
    points = min(POINTS, max(1, MOST_POINTS // len(parts)))
    at = (np.arange(points) + 0.5) / points
    ages = youngest[:, None] + (oldest - youngest)[:, None] * at
    weights = np.repeat(rows / points, points)
    p50, p99 = _quantiles(ages.ravel(), weights, (0.5, 0.99))
    return Summary(int(rows.sum()), float(np.average(mean, weights=rows)), p50, p99, float(oldest.max()))


def _quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> list[float]:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    at = np.searchsorted(reached, np.array(shares) * reached[-1])
    return [float(value) for value in values[order][np.minimum(at, len(values) - 1)]]
