"""An ordinary Spark application that knows nothing of being scheduled: its driver is what the tests attach to.

python spark_application.py FOLDER MASTER BROKER TOPIC [KEY=VALUE ...]

It says who it is in a first line of JSON. Then each line on its standard input is an order, each answered by a line:
`start NAME KIND SECONDS`, `stop NAME`, `work GROUP`, `quit`. Without more input it ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle import jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def start(spark: SparkSession, folder: Path, broker: str, topic: str, name: str, kind: str, seconds: str) -> str:
    """One streaming query of this kind: in Real-Time Mode with batches of so many seconds, or in micro-batches."""
    from pyspark.sql import functions as f

    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker).option("subscribe", topic)
    read = read.option("startingOffsets", "earliest").option("kafka.fetch.max.wait.ms", "5")
    if kind == "dear":
        read = read.option("maxOffsetsPerTrigger", 200)
    rows: DataFrame = read.load()
    rows = rows.select(f.col("value").cast("string").alias("v"), f.col("value").cast("string").alias("h"))
    burn = f.expr("aggregate(sequence(1, 3), h, (a, x) -> sha2(a, 512))")
    if kind == "chain":  # three stages
        for _ in range(2):
            rows = rows.withColumn("h", burn).repartition(1, "h")
        rows = rows.withColumn("h", burn).filter("h > '1'")
        rows = rows.select(f.col("h").alias("key"), f.col("v").alias("value"))
    elif kind == "count":  # two stages, the second with state
        rows = rows.groupBy(f.substring("v", -1, 1).alias("digit")).count()
    elif kind == "livelock":  # two stages, the second of which polls for what an ordinary thread brings
        rows = rows.repartition(1, "h").select(f.expr("java_method('Livelock', 'row', v)").alias("v"))
    elif kind == "python":
        rows = rows.mapInArrow(same, "v string, h string")
    elif kind == "dear":  # some milliseconds of CPU for each row
        rows = rows.withColumn("h", f.expr("aggregate(sequence(1, 2000), h, (a, x) -> sha2(a, 512))")).filter("h > '1'")
    write = rows.writeStream.queryName(name).outputMode("update").option("checkpointLocation", str(folder / name))
    if kind == "chain":
        write = write.format("kafka").option("kafka.bootstrap.servers", broker).option("topic", f"{topic}-{name}")
    elif kind == "each":  # each batch is looked at twice
        write = write.foreachBatch(partial(count_twice, folder / f"{name}.counts"))
    else:
        write = write.format("noop")
    trigger: dict[str, Any] = {"processingTime": f"{seconds} seconds"}
    if kind in ("chain", "count", "livelock"):
        trigger = {"realTime": f"{seconds} seconds"}
    query: StreamingQuery = write.trigger(**trigger).start()
    return str(query.runId)


def start_pipeline(spark: SparkSession, folder: Path, broker: str, topic: str, name: str, seconds: str) -> str:
    """The same by the Pipeline API, in its realtime layout: three stages."""
    import treadle

    p = treadle.Pipeline(f"{topic}-{name}")
    p.topic("rows", topic=topic, format="raw")
    p.operator(name="first", inputs="rows")(lambda rows: rows.selectExpr("value", "sha2(value, 512) AS h"))
    p.operator(name="second", inputs="first")(lambda first: first.selectExpr("value", "sha2(h, 512) AS h"))
    p.operator(name="third", inputs="second")(lambda second: second.where("h > '1'"))
    p.write(name, reads="third", format="noop")
    return str(p.start(spark, layout="realtime", folder=folder / name, kafka=broker, batch=f"{seconds}s"))


def count_twice(target: Path, rows: DataFrame, number: int) -> None:
    found = [sorted(row.v for row in rows.select("v").collect()) for _ in range(2)]
    with target.open("a") as file:
        file.write(f"{number} {len(found[0])} {found[0] == found[1]}\n")


def work(spark: SparkSession, group: str) -> str:
    """A job of the user's own, of some seconds of CPU, in a group that is called so."""
    spark.sparkContext.setJobGroup(group, "by hand")
    burn = "aggregate(sequence(1, 400), string(id), (a, x) -> sha2(a, 512))"
    return str(spark.range(0, 5_000, 1, 4).selectExpr(f"max({burn}) AS most").first())


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def obey(spark: SparkSession, folder: Path, broker: str, topic: str, words: list[str]) -> str:
    if words[:1] + words[2:3] == ["start", "pipeline"]:
        return start_pipeline(spark, folder, broker, topic, words[1], words[3])
    if words[0] == "start":
        return start(spark, folder, broker, topic, *words[1:])
    if words[0] == "work":
        return work(spark, words[1])
    if words[0] == "stop":
        query = next(query for query in spark.streams.active if query.name == words[1])
        query.stop()
        return str(query.runId)
    raise ValueError(f"no such order: {words}")


def main() -> None:
    from pyspark.sql import SparkSession

    folder, master, broker, topic = Path(sys.argv[1]), *sys.argv[2:5]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    config = {
        "spark.jars": ",".join(map(str, jars.paths("spark-kafka"))),
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.port": "0",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.realTimeMode.minBatchDuration": "500ms",
        "spark.sql.streaming.realTimeMode.allowlistCheck": "false",  # it knows no `noop`
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
    }
    config.update(pair.partition("=")[::2] for pair in sys.argv[5:])
    builder = SparkSession.builder.appName(f"reads {topic}").master(master)
    for key, value in config.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    context = spark.sparkContext
    tell(
        {
            "pid": pid,
            "ui": context.uiWebUrl,
            "id": context.applicationId,
            "name": context.appName,
            "python": os.getpid(),
        }
    )
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            break
        try:
            tell({"done": words, "run": obey(spark, folder, broker, topic, words)})
        except Exception as error:  # whoever gave the order has to hear of it
            tell({"failed": words, "error": str(error)})
    for query in spark.streams.active:
        query.stop()
    spark.stop()


def tell(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
