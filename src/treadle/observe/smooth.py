"""An exponential moving average, row by row, that takes the elapsed time into account.

It knows nothing of metrics. The weight of a new value is 1 - exp(-age / tau), where age is the time since the row's
last known value: the average does not depend on how long rounds are, or how often rounds or values are left out.
"""

from __future__ import annotations

import math

import numpy as np

from treadle.model import Floats, Ints


class Smoother:
    """The average of one column. An unknown value keeps the last average, until that is older than `forget` seconds."""

    def __init__(self, rows: int, tau: float, forget: float) -> None:
        self._tau = tau
        self._forget = forget
        self._mean = np.full(rows, np.nan)
        self._age = np.zeros(rows)
        self._oldest = 0.0
        """An upper bound of all ages, so that most rounds need not search for averages that are too old."""

    def step(self, value: Floats, seconds: float) -> Floats:
        """Add a value measured `seconds` after the last one. The first known value is taken as it is."""
        known = np.isfinite(value)
        self._age += seconds
        if self._tau > 0.0:
            away = value - self._mean
            away *= np.expm1(self._age / -self._tau)  # negative
            away[~known] = 0.0
            mean: Floats = self._mean - away
        else:
            mean = np.where(known, value, self._mean)
        if len(mean) and math.isnan(mean[mean.argmin()]):  # argmin finds NaN first
            first = known & np.isnan(mean)
            mean[first] = value[first]
        self._age[known] = 0.0
        self._oldest += seconds
        if self._oldest > self._forget:
            mean[self._age > self._forget] = np.nan
            self._oldest = self._age.max(initial=0.0)
        self._mean = mean
        return mean

    def realign(self, source: Ints) -> None:
        """Move rows: the new row i is the old row `source[i]`, or a new one where that is -1."""
        self._mean = realign(self._mean, source)
        self._age = np.nan_to_num(realign(self._age, source))


def realign(column: Floats, source: Ints) -> Floats:
    """Return a column in a new order: the new row i is the old row `source[i]`, or NaN where that is -1."""
    return np.append(column, np.nan)[source]
