"""Counts and sums over all rows, estimated with intervals from the rows that were kept.

A row that was kept with probability p has the weight w = 1/p. The sum of w x is the Horvitz-Thompson estimate of the
sum of x over all rows; the sum of w (w - 1) x^2 is an unbiased estimate of its variance if rows were dropped
independently. Rows that share one random draw are first summed up as one unit. If a few rows have large weights, the
estimate of the variance depends on few rows. So the interval is that of Student's distribution; its degrees of freedom
are the number of rows with equal contributions that would give the same spread. This module knows only weights, and
nothing of what drops rows.

A weight of exactly 1 means that nothing was dropped when the row arrived. A row that is always kept while others may be
dropped has a weight slightly above 1, so a sample of only such rows is not mistaken for all rows. With fewer than
`FEWEST` rows that could have been dropped there is no interval.
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
"""The column with the weight of a kept row: how many rows it counts for."""
ROWS = "rows"
"""The column with the number of a unit's rows."""
NORMAL = 1.959963984540054
"""95 % of a normal distribution are within this many standard deviations of its mean."""
FIRST, SECOND = (NORMAL**3 + NORMAL) / 4, (5 * NORMAL**5 + 16 * NORMAL**3 + 3 * NORMAL) / 96
"""What Student's distribution adds to `NORMAL`: the terms with 1/n and 1/n^2, for n degrees of freedom."""
LEAST_FREEDOM = 1.0
SURE = 1.0 + 1e-9
"""A row with a weight up to this is always kept, so it adds nothing to the variance."""
FEWEST = 5
"""An interval needs this many rows in the sum that could have been dropped: fewer don't show how many others were."""


class Estimate(NamedTuple):
    """A number and the interval in which the true number is in 95 of 100 cases; NaN where the interval is unknown."""

    value: float
    low: float
    high: float

    @property
    def relative_error(self) -> float:
        """Half the width of the interval, divided by the value; inf if the interval is unknown."""
        if math.isnan(self.high):
            return math.inf
        return (self.high - self.low) / 2 / abs(self.value) if self.value else math.inf if self.high else 0.0


def total(weights: ArrayLike, values: ArrayLike = 1.0, units: ArrayLike | None = None) -> Estimate:
    """Estimate the sum of `values` over all rows from those that were kept; without `values`, the number of rows.

    Rows that were not dropped independently of each other (rows of one key, several rows made from one, pairs of a
    join) need `units`: for each row the unit that it belongs to. See `per_unit`.
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
    """Do for arrays what `per_unit` does for a table."""
    names, unit = np.unique(np.asarray(units), return_inverse=True)
    largest = np.zeros(len(names))
    np.maximum.at(largest, unit, weight)
    return largest, np.bincount(unit, weight * value, len(names)) / largest


def of_sums(value: float, variance: float, squares: float) -> Estimate:
    """Make an estimate from three sums: of w x, of w (w - 1) x^2, and of the squares of the latter."""
    if variance <= 0.0:
        return Estimate(value, value, value)
    freedom = max(variance**2 / squares, LEAST_FREEDOM)
    reach = (NORMAL + FIRST / freedom + SECOND / freedom**2) * math.sqrt(variance)
    return Estimate(value, value - reach, value + reach)


def corrected(values: str | None = None, weight: str = WEIGHT) -> Column:
    """For Spark's `agg`: estimate the sum of a column over all rows; without `values`, the number of rows.

    The result is a struct of `value`, `low` and `high`. The interval is right for rows that were dropped independently
    of each other: other rows need `per_unit` first. `low` and `high` are NULL where they are unknown: no row is left,
    or rows may have been dropped and fewer than `FEWEST` of the rows in the sum could have been dropped.
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
    """Sum up the rows of each unit in one row for `corrected`: each column of `values`, and the row count as `rows`.

    A unit is a set of rows that share a draw: the rows of one key that was shed `by_key`, the rows that `explode` made
    of one row, or the pairs of a join that share an input row. `unit` names the key, the id of the row or the columns
    of the join, and the columns by which you group afterwards. A unit has the weight of its heaviest row. With that
    weight the interval is exact where all rows of a unit share one draw. Otherwise it is never too narrow if the values
    of a unit have one sign: the variance of its sum z is at most E[z^2 (1 - 1/w)].
    """
    from pyspark.sql import functions as f

    by = [unit] if isinstance(unit, str) else list(unit)
    if not by:
        raise ConfigError(
            "unit names no columns",
            where="per_unit",
            remedy="name the columns of rows that are kept or dropped together",
        )
    w = f.col(WEIGHT)
    sums = [(f.sum(w * f.col(each).cast("double")) / f.max(w)).alias(each) for each in values]
    return rows.groupBy(*by).agg((f.sum(w) / f.max(w)).alias(ROWS), *sums, f.max(w).alias(WEIGHT))


def joined(left: DataFrame, right: DataFrame, on: Any, *, together: bool) -> DataFrame:
    """Inner join of two inputs with weights, which gives each pair its own weight; `on` is as in Spark's `join`.

    With `together=False` the two rows of a pair were dropped independently of each other, so their weights multiply.
    With `together=True` the rows of a pair are kept or dropped together, since both inputs were shed `by_key` with the
    same key, and nowhere else: a pair is kept if the input that keeps less keeps its row, so the larger of both weights
    counts. There is no outer join: where partners were dropped, it is unknown which rows have none.
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
    """Raise a ConfigError for a table with two weight columns: neither is the weight of a pair of rows."""
    if list(columns).count(WEIGHT) > 1:
        remedy = "join its inputs with treadle.joined(left, right, on, together=…), which makes one of both"
        raise ConfigError(f"has {list(columns).count(WEIGHT)} columns '{WEIGHT}'", where=where, remedy=remedy)
