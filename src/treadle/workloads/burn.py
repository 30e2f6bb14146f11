"""Work for the CPU as an expression of Spark: so many hashes, and what one of them costs on this machine."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from treadle.enforce.gate.slots import usable_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES = 3
"""As often in a row it must not have become cheaper."""


def burn(column: str, times: int) -> str:
    """An expression that costs as much as so many hashes, and can't be optimised away."""
    return f"aggregate(sequence(1, {times}), {column}, (a, x) -> sha2(a, 512))"


def calibrate(spark: SparkSession, seconds: float = 0.6) -> float:
    """What one burn costs here, in CPU seconds of one core while all burn: the least of several, as others may run.

    The JVM makes it several times cheaper within the first seconds, so it is measured until that has come to an end.
    """
    cores = spark.sparkContext.defaultParallelism
    burns = 50

    def took(rows: int) -> float:
        # Made anew each time: Spark keeps what a query has shuffled, and would not burn twice for it.
        work = spark.range(0, rows, 1, cores).selectExpr(f"max({burn('cast(id as string)', burns)}) as m")
        began = time.perf_counter()
        work.collect()
        return time.perf_counter() - began

    rows, least, tries = 200 * cores, math.inf, 0
    while tries < TRIES:
        now = took(rows)
        if now < seconds:
            rows, least, tries = 2 * rows, math.inf, 0
        else:
            tries = tries + 1 if now > 0.95 * least else 0
            least = min(least, now)
    return least * usable_cores() / (rows * burns)
