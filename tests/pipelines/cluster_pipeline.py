"""A pipeline for a cluster: Python work on executors, between Kafka topics.

python cluster_pipeline.py FOLDER MASTER BROKER TOPIC
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import treadle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLDER, MASTER, BROKER, TOPIC = sys.argv[1:5] if len(sys.argv) > 4 else (".", "local[2]", "", "numbers")

p = treadle.Pipeline(f"cluster-{TOPIC}")
p.topic("numbers", topic=TOPIC, schema="a bigint", options={"maxOffsetsPerTrigger": 100})


def where(parts: Iterator[Any]) -> Iterator[Any]:
    """Which process works on each row: executors of a standalone cluster have folders of their own."""
    from pathlib import Path

    for part in parts:
        yield part.assign(place=str(Path.cwd()))


@p.operator
def worked(numbers: DataFrame) -> DataFrame:
    return numbers.mapInPandas(where, "a bigint, place string")


@p.operator
def counted(worked: DataFrame) -> DataFrame:
    return worked.selectExpr("a", "place", "a % 3 AS third")


@p.sink
def files(counted: DataFrame, batch_id: int) -> None:
    rows = [row.asDict() for row in counted.collect()]
    (Path(FOLDER) / "out").mkdir(parents=True, exist_ok=True)
    (Path(FOLDER) / "out" / f"{batch_id}.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    config = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.driver.host": "127.0.0.1"}
    spark = treadle.session("cluster", master=MASTER, config={**config, "spark.driver.memory": "1g"})
    with p.start(spark, folder=Path(FOLDER) / "work", channels="kafka", kafka=BROKER) as run:
        run.stop(drain=True, timeout=240)
        run.check()
    spark.stop()
