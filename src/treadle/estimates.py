"""What all rows would have come to, estimated from those that were kept: corrected counts and sums with intervals.

A row that was kept with probability p carries the weight w = 1/p. The sum of w x is the Horvitz-Thompson estimate of
the sum of x over all rows; the sum of w (w - 1) x^2 is an unbiased estimate of its variance where rows were dropped
independently. Where several share one draw, they are first summed up as one unit. That estimate is itself made by few
rows where some weigh much, so the interval is Student's, with as many degrees of freedom as rows of equal part would
give that spread. It knows weights, and nothing of what drops rows.

A weight of exactly 1 says that nothing was dropped when the row came. A row that is always kept while others may be
dropped weighs a trifle more, so a sample of such rows alone is not taken for the whole: below `FEWEST` rows that could
have been dropped there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treadle.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Floats = NDArray[np.float64]

WEIGHT = "_weight"
"""The column with what a row that was kept counts for."""
ROWS = "rows"
"""The column with the number of a unit's rows."""
NORMAL = 1.959963984540054
"""So many standard deviations around it have 95 % of a normal distribution."""
FIRST, SECOND = (NORMAL**3 + NORMAL) / 4, (5 * NORMAL**5 + 16 * NORMAL**3 + 3 * NORMAL) / 96
"""What Student's distribution has more, by one through its degrees of freedom and by the square of that."""
LEAST_FREEDOM = 1.0
SURE = 1.0 + 1e-9
"""A row that weighs no more than this is always kept."""
FEWEST = 5
"""Rows that could have been dropped, and have a part in the sum: of fewer nobody knows how many others were dropped."""


class Estimate(NamedTuple):
    """A number and the interval in which the true one lies in 95 of 100 cases; NaN where that can't be known."""

    value: float
    low: float
    high: float

    @property
    def relative_error(self) -> float:
        """Half of the interval as a part of the value: what is not known of it."""
        if math.isnan(self.high):
            return math.inf
        return (self.high - self.low) / 2 / abs(self.value) if self.value else math.inf if self.high else 0.0


def total(weights: ArrayLike, values: ArrayLike = 1.0, units: ArrayLike | None = None) -> Estimate:
    """The sum of `values` over all rows, by those that were kept; without values their number.

    Rows that were not dropped independently of each other (those of one key, several made of one, pairs of a join) need
    `units`: for each row what it belongs to. See `per_unit`.
    """
    weight = np.asarray(weights, dtype=np.float64)
    value = np.broadcast_to(np.asarray(values, dtype=np.float64), weight.shape)
    if units is not None:
        weight, value = _per_unit(weight, value, units)
    at_risk = np.where(weight > SURE, weight, 1.0)
    spread = at_risk * (at_risk - 1.0) * value**2
    summed = float((weight * value).sum())
    exact = weight.size > 0 and weight.max() <= 1.0
    if not exact and np.count_nonzero(spread) < FEWEST:
        return Estimate(summed, math.nan, math.nan)
    return of_sums(summed, float(spread.sum()), float((spread**2).sum()))


def _per_unit(weight: Floats, value: Floats, units: ArrayLike) -> tuple[Floats, Floats]:
    """What `per_unit` makes of a table, for arrays."""
    names, unit = np.unique(np.asarray(units), return_inverse=True)
    largest = np.zeros(len(names))
    np.maximum.at(largest, unit, weight)
    return largest, np.bincount(unit, weight * value, len(names)) / largest


def of_sums(value: float, variance: float, squares: float) -> Estimate:
    """From the sum of w x, of w (w - 1) x^2, and of the squares of the latter."""
    if variance <= 0.0:
        return Estimate(value, value, value)
    freedom = max(variance**2 / squares, LEAST_FREEDOM)
    reach = (NORMAL + FIRST / freedom + SECOND / freedom**2) * math.sqrt(variance)
    return Estimate(value, value - reach, value + reach)


def corrected(values: str | None = None, weight: str = WEIGHT) -> Column:
    """For `agg` in Spark: the estimate of a column's sum over all rows, or of their number, as value, low and high.

    The interval is that of rows that were dropped independently of each other: others need `per_unit` first. `low` and
    `high` are NULL where they can't be known: rows may have been dropped, and fewer than `FEWEST` of those that are
    left and have a part in the sum could have been, or no row is left at all.
    """
    from pyspark.sql import functions as f

    w = f.col(weight)
    at_risk = f.when(w > SURE, w).otherwise(1.0)
    x: Any = f.lit(1.0) if values is None else f.col(values).cast("double")
    spread = at_risk * (at_risk - 1.0) * x * x
    value = f.coalesce(f.sum(w * x), f.lit(0.0))
    variance = f.coalesce(f.sum(spread), f.lit(0.0))
    freedom = f.greatest(variance * variance / f.sum(spread * spread), f.lit(LEAST_FREEDOM))
    factor = f.lit(NORMAL) + FIRST / freedom + SECOND / (freedom * freedom)
    enough = f.count(f.when(spread > 0.0, 1)) >= FEWEST
    reach = f.when(enough, factor * f.sqrt(variance)).when(f.max(w) <= 1.0, 0.0)
    return f.struct(value.alias("value"), (value - reach).alias("low"), (value + reach).alias("high"))


def per_unit(rows: DataFrame, unit: str | Sequence[str], *values: str) -> DataFrame:
    """One row for each value of the `unit` columns, for `corrected`: the sums of these columns, and of 1 in `rows`.

    For rows that share a draw: those of one key that was shed `by_key`, those that `explode` made of one row, the pairs
    of a join, which share what they were made of. Name the key, the row's id, the columns of the join; and the
    columns by which you group afterwards. A unit weighs as much as the heaviest of its rows. With that the interval is
    exact where all rows of a unit share one draw, and otherwise no narrower than it must be, if the values of a unit
    have one sign: the variance of its sum z is at most E[z^2 (1 - 1/w)].
    """
    from pyspark.sql import functions as f

    by = [unit] if isinstance(unit, str) else list(unit)
    if not by:
        raise ConfigError("no unit", where="per_unit", remedy="name the columns whose rows share a draw")
    w = f.col(WEIGHT)
    sums = [(f.sum(w * f.col(each).cast("double")) / f.max(w)).alias(each) for each in values]
    return rows.groupBy(*by).agg((f.sum(w) / f.max(w)).alias(ROWS), *sums, f.max(w).alias(WEIGHT))


def joined(left: DataFrame, right: DataFrame, on: Any, *, together: bool) -> DataFrame:
    """The inner join of two inputs that carry weights, each pair with its own weight; `on` is as in Spark's `join`.

    With `together=False` the two rows of a pair were dropped independently of each other, so their weights multiply.
    With `together=True` they stay or go as one, since both inputs were shed `by_key` with the same key, and nowhere
    else: a pair stays where the smaller part stays, so the larger of both weights counts. There is no outer join: which
    rows have no partner is not known where partners were dropped.
    """
    from pyspark.sql import functions as f

    for rows, which in ((left, "left"), (right, "right")):
        check_weight(rows.columns, f"joined, its {which} input")
    if WEIGHT not in left.columns or WEIGHT not in right.columns:
        return left.join(right, on)
    other = f"{WEIGHT}_of_right"
    pairs = left.join(right.withColumnRenamed(WEIGHT, other), on)
    both = (f.col(WEIGHT), f.col(other))
    return pairs.withColumn(WEIGHT, f.greatest(*both) if together else both[0] * both[1]).drop(other)


def check_weight(columns: Sequence[str], where: str) -> None:
    """Refuse a table with two weights: neither is what a pair of rows counts for."""
    if list(columns).count(WEIGHT) > 1:
        remedy = "join its inputs with treadle.joined(left, right, on, together=…), which makes one of both"
        raise ConfigError(f"has {list(columns).count(WEIGHT)} columns '{WEIGHT}'", where=where, remedy=remedy)
