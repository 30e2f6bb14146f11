"""A query in Spark's Real-Time Mode that counts its own rows, for comparison with Treadle's figures.

Five stages: one reads Kafka and filters, one has projections only, one waits for another system (it sleeps), one has
two partitions, one aggregates and writes to Kafka. At the start and the end of each stage a native expression
(`java/treadle/tap/Tap.java`) counts each row, without Spark's counters. The query knows nothing of Treadle.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.jvm import classes
from treadle.workloads.burn import burn
from treadle.workloads.realtime import Chain, Started, serve, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STAGES = ("filter", "project", "block", "two", "aggregate")
KEPT = "a"
"""Rows with a hash below this are kept: ten of sixteen."""
HASHES = {"filter": 20, "project": 40, "block": 10, "two": 40, "aggregate": 30}
BLOCKED = 60
"""Microseconds that the third stage waits for each row."""


class Tapped(Started):
    """The running application, whose query reads `query.source` and writes `query.sink`; its counts go to `file`."""

    def __init__(self, query: Chain, servers: str, file: Path, *, batch: str, core: int | None = None) -> None:
        order = {"name": query.name, "servers": servers, "batch": batch, "core": core, "file": str(file)}
        super().__init__("treadle.workloads.tapped", order)


def _main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    if order["core"] is not None:
        os.sched_setaffinity(0, {order["core"]})
    extra = {"spark.sql.streaming.realTimeMode.allowlistCheck": "false"}
    spark = session(2 * len(STAGES) + 4, extra | tap(Path(order["file"])))
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", order["servers"])
    source = source.option("subscribe", f"{order['name']}-in").option("startingOffsets", "earliest")
    rows = source.option("kafka.fetch.max.wait.ms", "5").load()
    stream = _stages(rows.selectExpr("cast(cast(value as string) as bigint) as created", "cast(value as string) as h"))
    out = stream.writeStream.queryName(order["name"]).format("kafka").option("topic", f"{order['name']}-out")
    out = out.option("kafka.bootstrap.servers", order["servers"])
    out = out.option("checkpointLocation", tempfile.mkdtemp(prefix="treadle-"))
    out.outputMode("update").trigger(realTime=order["batch"]).start()  # type: ignore[call-overload]
    serve(spark)


def _stages(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody does

    rows = _worked(rows, "filter").where(f"h < '{KEPT}'")
    rows = tapped(rows, "filter out").repartition(1, "h")
    rows = tapped(_worked(rows, "project"), "project out").repartition(1, "h")
    rows = rows.withColumn("h", _after(f"reflect('treadle.tap.Tap', 'block', {BLOCKED})"))
    rows = tapped(_worked(rows, "block"), "block out").repartition(2, "h")
    rows = tapped(_worked(rows, "two"), "two out").repartition(1, "created")
    rows = _worked(rows, "aggregate").groupBy(F.substring("h", 1, 2).alias("h")).agg(F.max("created").alias("created"))
    return tapped(rows, "aggregate out").selectExpr("cast(created as string) as value", "h as key")


def _worked(rows: DataFrame, stage: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody does

    return tapped(rows, f"{stage} in").withColumn("h", F.expr(burn("h", HASHES[stage])))


def tap(file: Path) -> dict[str, str]:
    """Spark settings that make `tapped` write its counts to a file."""
    jar = classes.jar("treadle-tap", Path(__file__).parent / "java" / "treadle" / "tap").path
    return {"spark.driver.extraClassPath": str(jar), "spark.driver.extraJavaOptions": f"-Dtreadle.tap={file}"}


def tapped(rows: DataFrame, place: str) -> DataFrame:
    """Count each row, by an expression that Spark can neither remove nor move, since it is non-deterministic."""
    return rows.withColumn("h", _after(f"reflect('treadle.tap.Tap', 'pass', '{place}', spark_partition_id(), created)"))


def _after(call: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody does

    return F.expr(f"if({call} = 'true', h, h)")


if __name__ == "__main__":
    _main()
