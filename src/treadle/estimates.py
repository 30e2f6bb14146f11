"""What all rows would have come to, told from those that were kept: corrected counts and sums with their intervals.

A row that was kept with probability p carries the weight w = 1/p. The sum of w x is the Horvitz-Thompson estimate of
the sum of x over all rows; the sum of w (w - 1) x^2 is an unbiased estimate of its variance where rows were dropped
independently. That estimate is itself made by few rows where some weigh much, so the interval is Student's, with as
many degrees of freedom as rows of equal part would give that spread. It knows weights, and nothing of who drops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from pyspark.sql import Column

WEIGHT = "_weight"
"""The column with what a row that was kept counts for."""
NORMAL = 1.959963984540054
"""So many standard deviations around it have 95 % of a normal distribution."""
FIRST, SECOND = (NORMAL**3 + NORMAL) / 4, (5 * NORMAL**5 + 16 * NORMAL**3 + 3 * NORMAL) / 96
"""What Student's distribution has more, by one through its degrees of freedom and by the square of that."""
LEAST_FREEDOM = 1.0


class Estimate(NamedTuple):
    """A number and the interval in which the true one lies in 95 of 100 cases."""

    value: float
    low: float
    high: float

    @property
    def relative_error(self) -> float:
        """Half of the interval as a part of the value: what is not known of it."""
        return (self.high - self.low) / 2 / abs(self.value) if self.value else math.inf if self.high else 0.0


def total(weights: ArrayLike, values: ArrayLike = 1.0) -> Estimate:
    """The sum of `values` over all rows, by those that were kept; without values their number.

    For rows that were shed by key give one weight and the sum of its values for each key.
    """
    weight = np.asarray(weights, dtype=np.float64)
    value = np.broadcast_to(np.asarray(values, dtype=np.float64), weight.shape)
    spread = weight * (weight - 1.0) * value**2
    return of_sums(float((weight * value).sum()), float(spread.sum()), float((spread**2).sum()))


def of_sums(value: float, variance: float, squares: float) -> Estimate:
    """From the sum of w x, of w (w - 1) x^2, and of the squares of the latter."""
    if variance <= 0.0:
        return Estimate(value, value, value)
    freedom = max(variance**2 / squares, LEAST_FREEDOM)
    reach = (NORMAL + FIRST / freedom + SECOND / freedom**2) * math.sqrt(variance)
    return Estimate(value, value - reach, value + reach)


def corrected(values: str | None = None, weight: str = WEIGHT) -> Column:
    """For `agg` in Spark: the estimate of a column's sum over all rows, or of their number, as value, low and high."""
    from pyspark.sql import functions as f

    w = f.col(weight)
    x: Any = f.lit(1.0) if values is None else f.col(values).cast("double")
    spread = w * (w - 1.0) * x * x
    value = f.coalesce(f.sum(w * x), f.lit(0.0))
    variance = f.coalesce(f.sum(spread), f.lit(0.0))
    freedom = f.greatest(variance * variance / f.sum(spread * spread), f.lit(LEAST_FREEDOM))
    factor = f.lit(NORMAL) + FIRST / freedom + SECOND / (freedom * freedom)
    reach = f.when(variance > 0.0, factor * f.sqrt(variance)).otherwise(0.0)
    return f.struct(value.alias("value"), (value - reach).alias("low"), (value + reach).alias("high"))
