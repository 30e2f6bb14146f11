"""The CPU of each sink is what its tasks used, in the JVM and in Python, however long it holds its slot."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import treadle
from pipelines.quality.test_promises import flooded, sinks
from support import named, until
from treadle.workloads.burn import burn

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession


def test_a_sink_that_waits_uses_less_than_those_that_work_in_the_jvm_and_in_python(
    spark: SparkSession, tmp_path: Path
) -> None:
    p = treadle.Pipeline(named("cpu"))
    p.feed("rows", schema="id long")

    @p.sink(min_accuracy=0.0)
    def java(rows: DataFrame) -> None:
        rows.selectExpr(burn("cast(id as string)", 500)).write.format("noop").mode("append").save()

    @p.sink(min_accuracy=0.0)
    def python(rows: DataFrame) -> None:
        def hashed(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for batch in batches:
                for number in batch["id"]:
                    hashlib.pbkdf2_hmac("sha256", str(number).encode(), b"", 1000)
                yield batch[["id"]]

        rows.mapInPandas(hashed, "id long").write.format("noop").mode("append").save()

    @p.sink(min_accuracy=0.0)
    def waits(rows: DataFrame) -> None:
        rows.write.format("noop").mode("append").save()
        time.sleep(0.3)

    with p.start(spark, folder=tmp_path, slots=3, cycle="1s", limit_rows=10**9) as run, flooded(run):

        def told() -> bool:
            found: dict[str, Any] = {name: each["cpu"] or 0.0 for name, each in sinks(run).items()}
            busy = min(found["java"], found["python"])
            return bool(busy > 0.05 and busy > 2 * found["waits"])

        until(told, run)
        assert run.hops["waits"].busy > 0.0
