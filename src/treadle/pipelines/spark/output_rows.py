"""Counts the rows that leave the last operator of a streaming query in each batch, by Spark's SQL metrics.

It reads the plans of batches that have run. It adds nothing to a plan and starts no job: see
`java/treadle/OutputRows.java`.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import TreadleError
from treadle.jvm import classes
from treadle.observe.graph import TRACE
from treadle.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("treadle.pipelines")


@dataclass(eq=False)
class RowCounts:
    """Counts the rows in and out of a query, over all of its batches so far."""

    tuples_in: int = field(default=0, init=False)
    tuples_out: int = field(default=0, init=False)
    """Rows out, over all batches in which Spark counted rows out; for a sink, the rows that left its last operator."""
    counted: bool = field(default=True, init=False)
    """Whether rows out were counted in the last batch that had rows in."""
    _made_later: int = field(default=0, init=False)

    @property
    def rows_out(self) -> float:
        """`tuples_out`, or NaN while they are not counted."""
        return self.tuples_out if self.counted else math.nan

    @property
    def flow(self) -> tuple[float, float]:
        """The metrics `tuples_in` and `tuples_out` for policies; rows out are above 0 if they are counted (`TRACE`)."""
        return float(self.tuples_in), self.rows_out + TRACE * self.tuples_in

    def count(self, rows: int, out: float) -> None:
        """Add a batch with `rows` rows in and `out` rows out; NaN if rows out are not known.

        Rows out of a batch without rows in, as when a window closes, are counted with the next batch that has rows in.
        The reason is that policies relate rows out to rows in.
        """
        self.tuples_in += rows
        if not rows:
            self._made_later += 0 if math.isnan(out) else round(out)
            return
        self.counted = not math.isnan(out)
        if self.counted:
            self.tuples_out += round(out) + self._made_later
            self._made_later = 0


class OutputRows:
    """Counts the rows that leave queries, by Spark's own objects in the JVM; NaN where Spark does not count them."""

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._functions: tuple[Any, Any] | None = None
        if spark is None:
            return
        sources = Path(str(resources.files("treadle.pipelines") / "java" / "treadle"))
        try:
            jvm.load_class(spark, "treadle.OutputRows", lambda: classes.spark_jar("treadle-plans", sources).path)
            java: Any = spark.sparkContext._jvm
            self._functions = java.treadle.OutputRows.latest, java.treadle.OutputRows.of
        except TreadleError as error:
            log.warning("output rows of queries are not counted, which policy highest-rate needs: %s", error)

    def latest(self, query: Any, rows: int) -> float:
        """Rows out of a query's latest batch, which took in `rows` rows; 0 if that batch has been counted before."""
        return self._counted(0, query, rows)

    def of(self, execution: Any, rows: int) -> float:
        """Rows out of a batch that had `rows` rows in. `execution` is Spark's `IncrementalExecution` of the batch."""
        return self._counted(1, execution, rows)

    def _counted(self, function: int, subject: Any, rows: int) -> float:
        if self._functions is None or subject is None:
            return math.nan
        try:
            return float(self._functions[function](subject, float(rows)))
        except Exception as error:  # internals of Spark, which may differ in another version
            log.debug("output rows of a query were not counted: %s", error)
            return math.nan
