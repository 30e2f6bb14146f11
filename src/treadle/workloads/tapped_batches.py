"""A query in micro-batches that counts its own rows, for comparison with Treadle's figures.

It reads Kafka, filters, calls a Python function for each row after a shuffle, joins with a table and writes to Kafka. A
native expression (`java/treadle/tap/Tap.java`) counts the rows read from Kafka and the rows written to it, and a
listener logs the end time and the number of input rows of each batch: `time rows`. The query knows nothing of Treadle.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.workloads.realtime import Chain, Started, serve, session
from treadle.workloads.tapped import tap, tapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
KEPT, JOINED = "a", 8
"""Rows with a hash below `KEPT` are kept, ten of sixteen; `JOINED` of these ten have a first digit in the table."""


class TappedBatches(Started):
    """The running application; it writes its counts to `file` and its finished batches to `batches`."""

    def __init__(self, query: Chain, servers: str, file: Path, batches: Path, core: int | None = None) -> None:
        order = {"name": query.name, "servers": servers, "core": core, "file": str(file), "batches": str(batches)}
        super().__init__("treadle.workloads.tapped_batches", order)


def _main() -> None:
    from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

    class Batches(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
            pass

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
            pass

        def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
            began = datetime.fromisoformat(event.progress.timestamp).timestamp()
            done = began + event.progress.durationMs["triggerExecution"] / 1e3 - time.time() + time.monotonic()
            with Path(order["batches"]).open("a") as file:
                file.write(f"{done} {event.progress.numInputRows}\n")

    order: dict[str, Any] = json.loads(sys.argv[1])
    if order["core"] is not None:
        os.sched_setaffinity(0, {order["core"]})
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(2 * PARTITIONS + 2, tap(Path(order["file"])))
    spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    spark.streams.addListener(Batches())
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", order["servers"])
    rows = source.option("subscribe", f"{order['name']}-in").option("startingOffsets", "earliest").load()
    out = _worked(spark, rows).writeStream.queryName(order["name"]).format("kafka")
    out = out.option("kafka.bootstrap.servers", order["servers"]).option("topic", f"{order['name']}-out")
    out.option("checkpointLocation", tempfile.mkdtemp(prefix="treadle-")).start()
    serve(spark)


def _worked(spark: SparkSession, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody does

    rows = rows.selectExpr("cast(cast(value as string) as bigint) as created", "sha2(cast(value as string), 256) as h")
    rows = tapped(rows, "in").where(f"h < '{KEPT}'").repartition(PARTITIONS, "h")
    rows = rows.withColumn("digit", F.udf(_first_digit, "string")("h"))
    table = spark.range(JOINED).selectExpr("cast(id as string) as digit", "concat('joined ', id) as text")
    rows = tapped(rows.join(table, "digit"), "out")
    return rows.selectExpr("cast(created as string) as value", "concat(text, h) as key")


def _first_digit(text: str) -> str:
    return text[0]


if __name__ == "__main__":
    _main()
