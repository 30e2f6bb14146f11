"""`treadle bench channels`: the speed of rows of 100 bytes through a hop, from one channel to another.

The embedded channel, the same segments read by a Python Data Source, Spark's own file source and sink on Parquet, and
Kafka take turns in one session. The speed is in rows per second from the start of the query to its end.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle import jars
from treadle.bench.claims import Claims, Deaths, at_least, in_turns
from treadle.broker import Broker, free_port
from treadle.pipelines.spark.jvm import CHANNEL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str, float], None]
OTHERS = ("python_source", "parquet", "kafka")
"""Kinds of channel that the embedded one is compared with."""
SCHEMA = "id long, arrived timestamp, v double, payload string"


def run(*, rows: int = 2_000_000, repetitions: int = 3, progress: Progress | None = None) -> dict[str, Any]:
    """Return by kind of channel the median rows per second; one more repetition before them only warms up."""
    from treadle.pipelines.spark.session import session

    tell = progress or (lambda *_: None)
    connector = jars.fetch("spark-kafka")["spark-kafka"]
    config = {"spark.jars": ",".join(map(str, sorted(connector.glob("*.jar"))))}
    spark = session("bench-channels", config=config)
    spark.sparkContext.setLogLevel("OFF")
    folder = Path(tempfile.mkdtemp(prefix="treadle-"))
    broker = Broker.start(folder / "kafka", free_port())
    try:
        media: Mapping[str, _Medium] = {
            "embedded": _Embedded(spark, folder / "embedded"),
            "python_source": _PythonSource(spark, folder / "python"),
            "parquet": _Parquet(spark, folder / "parquet"),
            "kafka": _Kafka(spark, folder / "kafka-checkpoints", broker.bootstrap),
        }
        made = _rows(spark, rows)
        for medium in media.values():
            medium.fill(made)
        speeds: dict[str, list[float]] = {name: [] for name in media}
        total = (repetitions + 1) * len(media)
        deaths = Deaths()

        def measure(name: str, number: int) -> None:
            tell(f"{name} ({number + 1} of {total})", number / total)
            speeds[name].append(rows / media[name].hop(number))

        in_turns(list(media), repetitions + 1, measure, deaths)
        found = {name: round(float(np.median(each[1:]))) for name, each in speeds.items() if len(each) > 1}
        figures = {f"{name}_rows_per_s": speed for name, speed in found.items()}
        made_claims = claims(figures)
        ratios = {f"embedded_to_{name}": each["measured"] for name, each in zip(OTHERS, made_claims, strict=True)}
        return {**figures, **ratios, **deaths.figures(), "claims": made_claims}
    finally:
        broker.stop()
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def claims(figures: Mapping[str, float]) -> Claims:
    """Return the claims: the embedded channel, the default, is not slower than its alternatives."""

    def ratio(other: str) -> float:
        return figures["embedded_rows_per_s"] / figures[f"{other}_rows_per_s"]

    return [at_least(f"rows/s, embedded : {name}", partial(ratio, name), 1.0) for name in OTHERS]


def _rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr(
        "id", "current_timestamp() as arrived", "rand(1) as v", f"'{'x' * 68}' as payload"
    )


class _Medium:
    """A kind of channel: fills one channel with rows, and runs hops from this channel to new ones."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.folder.mkdir(parents=True)

    def fill(self, rows: DataFrame) -> None:
        raise NotImplementedError

    def _query(self, number: int) -> Any:
        raise NotImplementedError

    def hop(self, number: int) -> float:
        """Move all rows through a hop, and return the seconds that it took."""
        writer = self._query(number).option("checkpointLocation", str(self.folder / f"checkpoint{number}"))
        began = time.perf_counter()
        writer.trigger(availableNow=True).start().awaitTermination()
        return time.perf_counter() - began


class _Embedded(_Medium):
    def fill(self, rows: DataFrame) -> None:
        from treadle.pipelines.channels.log import Writer

        with Writer(self.folder / "in", rows.schema):
            pass
        rows.write.format(CHANNEL).options(path=str(self.folder / "in"), epoch="0").mode("append").save()

    def _rows(self) -> DataFrame:
        return self.spark.readStream.format(CHANNEL).load(str(self.folder / "in"))

    def _query(self, number: int) -> Any:
        rows = self._rows()
        (self.folder / f"out{number}" / "positions").mkdir(parents=True)
        return rows.writeStream.format(CHANNEL).option("path", str(self.folder / f"out{number}"))


class _PythonSource(_Embedded):
    """An alternative to the embedded channel: its segments are read in Python, by Spark's Python workers."""

    def _rows(self) -> DataFrame:
        self.spark.dataSource.register(_source())
        return self.spark.readStream.format("segments").load(str(self.folder / "in"))


def _source() -> Any:
    """Return the class of the data source; it is local to this function, so that Spark pickles it by value."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class Reader(DataSourceStreamReader):
        def __init__(self, folder: str) -> None:
            self.folder = folder

        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"segment": 0}

        def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: ARG002, N802
            return {"segment": len(self._segments())}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
            return [InputPartition(name) for name in self._segments()[start["segment"] : end["segment"]]]

        def read(self, partition: InputPartition) -> Any:
            import pyarrow as pa

            with pa.memory_map(f"{self.folder}/{partition.value}") as file:
                reader = pa.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    batch = reader.get_batch(number)
                    # The schema is left out: it marks columns as not nullable, which Spark refuses.
                    yield pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names)

        def _segments(self) -> list[str]:
            import os

            names = [name for name in os.listdir(self.folder) if name.endswith(".arrow") and name[0].isdigit()]
            return sorted(name for name in names if int(name.split("-")[1]))  # a batch without rows is an empty file

    class Segments(DataSource):
        @classmethod
        def name(cls) -> str:
            return "segments"

        def schema(self) -> str:
            return SCHEMA

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002, N802
            return Reader(self.options["path"])

    return Segments


class _Parquet(_Medium):
    def fill(self, rows: DataFrame) -> None:
        rows.write.parquet(str(self.folder / "in"))

    def _query(self, number: int) -> Any:
        rows = self.spark.readStream.schema(SCHEMA).parquet(str(self.folder / "in"))
        return rows.writeStream.format("parquet").option("path", str(self.folder / f"out{number}"))


class _Kafka(_Medium):
    def __init__(self, spark: SparkSession, folder: Path, servers: str) -> None:
        super().__init__(spark, folder)
        self.servers = servers

    def fill(self, rows: DataFrame) -> None:
        values = rows.selectExpr("to_json(struct(*)) as value").write.format("kafka")
        values.option("kafka.bootstrap.servers", self.servers).option("topic", "in").save()

    def _query(self, number: int) -> Any:
        source = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        rows = source.option("subscribe", "in").option("startingOffsets", "earliest").load()
        rows = rows.selectExpr(f"from_json(cast(value as string), '{SCHEMA}') as row").select("row.*")
        out = rows.selectExpr("to_json(struct(*)) as value").writeStream.format("kafka")
        return out.option("kafka.bootstrap.servers", self.servers).option("topic", f"out{number}")
