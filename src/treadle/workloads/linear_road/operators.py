"""The operators of Linear Road as functions of Spark DataFrames, for both modes.

`id` and `created` of a row are those of the position report that caused it. State is kept by (xway, dir); what is not
stateful is an expression of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.workloads.linear_road import keyed, rules, tolls
from treadle.workloads.linear_road.arrays import AVERAGE, COUNT, LAV, NOTICE, REPORT
from treadle.workloads.linear_road.merging import KEY, Step, same_rows, with_state

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FIELDS = ("type", "time", "vid", "speed", "xway", "lane", "dir", "seg", "pos")
"""The fields of a record that are used; others follow."""
NOTIFICATION = {
    "id": "long", "created": "timestamp", "kind": "string", "minute": "int", "xway": "int", "dir": "int", "seg": "int",
    "lav": "double", "count": "int", "toll": "long", "vid": "int", "time": "int", "speed": "int", "lane": "int",
    "pos": "int",
}  # fmt: skip
"""The columns of the sink; what does not belong to a kind of notification is null."""

AVERAGE_SPEED = Step(keyed.average_speed, (REPORT,), AVERAGE)
LAST_AVERAGE_SPEED = Step(keyed.last_average_speed, (AVERAGE,), LAV)
COUNT_VEHICLES = Step(keyed.count_vehicles, (REPORT,), COUNT)
TOLL_NOTIFICATION_POS = Step(tolls.toll_notification_pos, (REPORT, LAV, COUNT), NOTICE)
PREVIOUS_SPEED = Step(keyed.previous_speed, (REPORT,), AVERAGE)
LATEST_VALUES = Step(keyed.latest_values, (AVERAGE,), LAV)


def dispatcher(lines: DataFrame) -> DataFrame:
    """Parse records and keep position reports. Records without nine integers at their beginning are dropped."""
    from pyspark.sql import functions as f

    texts = f.split("line", ",", len(FIELDS) + 1)
    fields = [f.get(texts, f.lit(place)).try_cast("int").alias(name) for place, name in enumerate(FIELDS)]
    rows = lines.select("id", "created", *fields).where(f.col("type") == rules.POSITION_REPORT)
    minute = f.expr("int(time div 60 + 1)").alias("minute")
    return rows.dropna(subset=FIELDS).select("id", "created", minute, *FIELDS[1:])


def average_speed(reports: DataFrame) -> DataFrame:
    """Per minute: the average speed of each vehicle in a segment."""
    return with_state(AVERAGE_SPEED, reports)


def last_average_speed(averages: DataFrame) -> DataFrame:
    """Per minute: the LAV of each segment with vehicles."""
    return with_state(LAST_AVERAGE_SPEED, averages)


def count_vehicles(reports: DataFrame) -> DataFrame:
    """Per minute: the counts of crowded segments, or a row without a segment."""
    counts = with_state(COUNT_VEHICLES, reports)
    return same_rows(_with_nulls(counts, "seg", "count"), counts)


def toll_notification_las(lavs: DataFrame) -> DataFrame:
    """In both modes: one notification for each LAV."""
    return same_rows(_notifications(lavs, rules.LAS), lavs)


def toll_notification_cv(counts: DataFrame) -> DataFrame:
    """In both modes: one notification for each count."""
    return same_rows(_notifications(counts, rules.CV), counts)


def toll_notification_pos(reports: DataFrame, lavs: DataFrame, counts: DataFrame) -> DataFrame:
    """Per minute: a toll whenever a vehicle enters a segment. The notifications of both tables pass through."""
    from pyspark.sql import functions as f

    rows = with_state(TOLL_NOTIFICATION_POS, reports, lavs, counts)
    kind = f.element_at(f.array(*map(f.lit, rules.KINDS)), f.col("kind"))
    lav = f.when(~f.isnan("lav"), f.col("lav"))
    known = _with_nulls(rows, "seg", "count", "toll", "vid", "time", "speed", "lane", "pos")
    return known.withColumns({"kind": kind, "lav": lav}).select(*NOTIFICATION)


def previous_speed(reports: DataFrame) -> DataFrame:
    """With constant load: for each report the speed of the report before."""
    return with_state(PREVIOUS_SPEED, reports)


def latest_values(averages: DataFrame) -> DataFrame:
    """With constant load: for each average the mean of the latest values of its segment."""
    return with_state(LATEST_VALUES, averages)


def progress(reports: DataFrame) -> DataFrame:
    """With constant load: for each report one row without a segment."""
    nothing = "CAST(NULL AS int) AS seg", "CAST(NULL AS int) AS count", "0 AS closing"
    return reports.selectExpr(*KEY, "id", "created", "minute", *nothing)


def zero_toll(reports: DataFrame) -> DataFrame:
    """With constant load: for each report a notification without tables, so the toll is 0."""
    from pyspark.sql import functions as f

    return _notifications(reports.withColumns({"toll": f.lit(0), "closing": f.lit(0)}), rules.POS)


def notifications(lavs: DataFrame, counts: DataFrame, zero_tolls: DataFrame) -> DataFrame:
    """With constant load: the union that the sink reads."""
    return lavs.unionByName(counts).unionByName(zero_tolls).drop("closing")


def _with_nulls(rows: DataFrame, *names: str) -> DataFrame:
    """Rows with null in place of -1 in some columns."""
    from pyspark.sql import functions as f

    return rows.withColumns({name: f.nullif(f.col(name), f.lit(-1)) for name in names})


def _notifications(rows: DataFrame, kind: str) -> DataFrame:
    """Rows with the columns of the sink, and `closing`."""
    from pyspark.sql import functions as f

    given: dict[str, Column] = {**{name: f.col(name) for name in rows.columns}, "kind": f.lit(kind)}
    columns = [given.get(name, f.lit(None)).cast(of).alias(name) for name, of in NOTIFICATION.items()]
    return rows.select(*columns, "closing")
