"""Measures how much the values of a column vary. The error of the column's sum depends on that and on the rows dropped.

The sink's input is observed in Spark's plan (`DataFrame.observe`), and the result is read from progress reports.
`decide.quality.measures` computes the accuracy of the sum from it.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError
from treadle.estimates import WEIGHT
from treadle.pipelines.nodes.node import Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

REMEMBERED = 0.8
"""When a batch is added to the sums, the sums of all earlier batches are multiplied by this weight."""
EQUAL = 1.0
"""The spread if all values are equal, and if rows are only counted."""


class Spread:
    """The spread of the column that a sink's accuracy is about: its mean square divided by the square of its mean.

    `EQUAL` before the first batch, and for an accuracy about the number of rows. Infinite if the mean is 0.
    """

    def __init__(self, node: Node) -> None:
        self.value = EQUAL
        self._node = node
        self._column: str | None = getattr(node.accuracy, "column", None)
        self._name = f"treadle.{node.name}"
        self._batch = -1
        self._sums = (0.0, 0.0, 0.0)

    def watch(self, rows: DataFrame) -> DataFrame:
        """Return the same rows; if the accuracy is about a column, Spark sums its values while they pass."""
        if self._column is None:
            return rows
        from pyspark.sql import functions as f

        if self._column not in rows.columns:
            known = ", ".join(name for name in rows.columns if name != WEIGHT)
            raise ConfigError(
                f"its accuracy is about '{self._column}', which its input does not have",
                where=self._node.where,
                remedy=f"use one of {known}",
            )
        w: Any = f.col(WEIGHT) if WEIGHT in rows.columns else f.lit(1.0)
        x = f.col(self._column).cast("double")
        return rows.observe(
            self._name, f.sum(w).alias("rows"), f.sum(w * x).alias("sum"), f.sum(w * x * x).alias("squares")
        )

    def look(self, query: StreamingQuery | None) -> None:
        """Update `value` from the query's last progress report, unless that report was used before."""
        if self._column is None or query is None:
            return
        report: Any = query._jsq.lastProgress()  # PySpark's own conversion takes a hundred calls
        if report is None:
            return
        said = json.loads(report.json())
        found = (said.get("observedMetrics") or {}).get(self._name)
        if found is None or said["batchId"] == self._batch or not found.get("rows"):
            return
        self._batch = said["batchId"]
        new = (float(found["rows"]), float(found["sum"] or 0.0), float(found["squares"] or 0.0))
        before = self._sums
        self._sums = rows, total, squares = (
            REMEMBERED * before[0] + new[0],
            REMEMBERED * before[1] + new[1],
            REMEMBERED * before[2] + new[2],
        )
        self.value = rows * squares / total**2 if total else math.inf
