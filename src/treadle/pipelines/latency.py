"""How old rows are when they leave a sink, from what is known of each batch: how many rows, when they had arrived.

Rows are not looked at one by one: a part of a batch has its oldest and its mean arrival, and its rows are taken to have
come evenly in between. So a percentile is as fine as the parts are, which the channels keep small.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from treadle.model import Floats

POINTS = 16
"""Into how many equal shares of rows a part is cut for percentiles."""


class Summary(NamedTuple):
    """Latencies in seconds, weighted by rows; NaN where there were none."""

    rows: int
    mean: float
    p50: float
    p99: float
    max: float


class Part(NamedTuple):
    """Rows that left a sink together: when, how many, and how old the oldest was and they were on average."""

    time: float
    rows: int
    oldest: float
    mean: float


class Latency:
    """The latest parts of a sink, at most `keep` of them. May be written and read by different threads."""

    def __init__(self, keep: int = 100_000) -> None:
        self._parts: deque[Part] = deque(maxlen=keep)
        self._lock = threading.Lock()

    def add(self, time: float, ages: Iterable[Sequence[float]]) -> None:
        """A batch is done: for each part of it its rows, and the oldest and mean arrival in microseconds."""
        parts = [Part(time, int(n), time - oldest / 1e6, time - mean / 1e6) for n, oldest, mean in ages if n > 0]
        with self._lock:
            self._parts.extend(parts)

    def parts(self, since: float = -np.inf) -> list[Part]:
        """What left the sink since then."""
        with self._lock:
            return [part for part in self._parts if part.time >= since]

    def summary(self, since: float = -np.inf) -> Summary:
        return summarise(self.parts(since))


def summarise(parts: Sequence[Part]) -> Summary:
    """All parts together."""
    if not parts:
        return Summary(0, np.nan, np.nan, np.nan, np.nan)
    table = np.array([(part.rows, part.oldest, part.mean) for part in parts], dtype=np.float64)
    rows, oldest, mean = table.T
    youngest = np.maximum(2.0 * mean - oldest, 0.0)  # even between the two
    at = (np.arange(POINTS) + 0.5) / POINTS
    ages = youngest[:, None] + (oldest - youngest)[:, None] * at
    weights = np.repeat(rows / POINTS, POINTS)
    p50, p99 = _quantiles(ages.ravel(), weights, (0.5, 0.99))
    return Summary(int(rows.sum()), float(np.average(mean, weights=rows)), p50, p99, float(oldest.max()))


def _quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> list[float]:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    at = np.searchsorted(reached, np.array(shares) * reached[-1])
    return [float(value) for value in values[order][np.minimum(at, len(values) - 1)]]
