"""CPU work as a Spark expression: a number of hashes, and the measured cost of one hash on this machine."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from treadle.enforce.gate.slots import usable_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES = 3
"""Calibration ends after this many runs in a row that were not 5 % faster than the fastest before."""


def burn(column: str, times: int) -> str:
    """An expression that computes `times` hashes, and can't be optimised away."""
    return f"aggregate(sequence(1, {times}), {column}, (a, x) -> sha2(a, 512))"


def calibrate(spark: SparkSession, seconds: float = 0.6) -> float:
    """Return the cost of one hash in seconds of one core, with all cores busy: the least of several runs.

    The JVM's compilers make a hash several times cheaper in the first seconds, so runs go on until the cost is stable.
    """
    cores = spark.sparkContext.defaultParallelism
    burns = 50

    def took(rows: int) -> float:
        # A new query for each run: for the same one Spark would reuse its shuffle files and skip the work.
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
