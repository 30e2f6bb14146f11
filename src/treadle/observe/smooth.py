"""An exponential moving average that knows how much time passed, row by row.

It knows nothing of metrics. The weight of a new value is 1 - exp(-age / tau), where age is the time since the row's
last known value: rounds of any length, skipped rounds and rows measured rarely all end up at the same average.
"""

from __future__ import annotations

import numpy as np

from treadle.model import Floats, Ints


class Smoother:
    """The average of one column. An unknown value keeps the last average, until that is older than `forget` seconds."""

    def __init__(self, rows: int, tau: float, forget: float) -> None:
        self._tau = tau
        self._forget = forget
        self._mean = np.full(rows, np.nan)
        self._age = np.zeros(rows)

    def step(self, value: Floats, seconds: float) -> Floats:
        """Take in a value measured `seconds` after the last. The first known one is taken as it is."""
        known = np.isfinite(value)
        age, mean = self._age + seconds, self._mean
        if self._tau > 0.0:
            weight = np.expm1(age / -self._tau)  # negative
            value = np.where(np.isnan(mean), value, mean - weight * (value - mean))
        mean = np.where(known, value, mean)
        self._age = np.where(known, 0.0, age)
        mean[self._age > self._forget] = np.nan
        self._mean = mean
        return mean

    def realign(self, source: Ints) -> None:
        """Move rows: the new row i is the old row `source[i]`, or a new one where that is -1."""
        self._mean = realign(self._mean, source)
        self._age = np.nan_to_num(realign(self._age, source))


def realign(column: Floats, source: Ints) -> Floats:
    """The rows of a column in a new order; NaN where `source` is -1."""
    return np.append(column, np.nan)[source]
