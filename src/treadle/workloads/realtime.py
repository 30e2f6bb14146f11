"""A Spark application in its own process with queries in Real-Time Mode: benchmarks attach Treadle to it.

Each query is a chain of stages, each a calibrated native expression, from a topic to a topic. The application knows
nothing of Treadle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from treadle import jars
from treadle.errors import EngineError
from treadle.workloads.burn import burn
from treadle.workloads.producer import SIXTEEN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Chain:
    """A query from the topic `<name>-in` to `<name>-out`. `costs` are the hashes per row in each stage.

    The first stage keeps `keeps` of every sixteen rows.
    """

    name: str
    costs: tuple[int, ...]
    keeps: int = SIXTEEN

    def put_out(self, rows: int) -> int:
        """The number of output rows for a number of input rows."""
        return rows // SIXTEEN * self.keeps + min(rows % SIXTEEN, self.keeps)

    @property
    def source(self) -> str:
        return f"{self.name}-in"

    @property
    def sink(self) -> str:
        return f"{self.name}-out"


class Started:
    """A module of ours that runs as a Spark application in its own process; `pid` is the process id of its JVM."""

    def __init__(self, module: str, order: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", module, json.dumps(order)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said:
            raise EngineError("the application did not start", remedy="run the command by hand and see why")
        self.pid = int(said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the application without waiting for its batches."""
        if self._process.poll() is None:
            self._process.communicate()  # closes the standard input, which ends the process


class Application(Started):
    """An application that runs some chains, only on the core `core` if that is given.

    `batch` is the duration of a Real-Time batch; if it is None, queries run in micro-batches. A stage after a shuffle
    has `partitions` tasks, and `slots` is the number of task slots.
    """

    def __init__(
        self,
        chains: Sequence[Chain],
        servers: str,
        *,
        batch: str | None,
        core: int | None = None,
        partitions: int = 1,
        slots: int | None = None,
    ) -> None:
        order = {
            "chains": [asdict(chain) for chain in chains],
            "servers": servers,
            "batch": batch,
            "core": core,
            "partitions": partitions,
            "slots": slots or 2 * sum(len(chain.costs) for chain in chains) + 2,
        }
        super().__init__("treadle.workloads.realtime", order)


def _main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    if order["core"] is not None:
        os.sched_setaffinity(0, {order["core"]})
    chains = [Chain(chain["name"], tuple(chain["costs"]), chain["keeps"]) for chain in order["chains"]]
    spark = session(order["slots"])
    for chain in chains:
        _start(spark, chain, order["servers"], order["batch"], order["partitions"])
    serve(spark)


def serve(spark: SparkSession) -> None:
    """Print the process id of the JVM for `Started`, and end this process when its standard input is closed."""
    sys.stdout.write(f"{spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()}\n")  # type: ignore[union-attr]
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # Spark's own stop waits for the end of a batch


def session(slots: int, extra: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """A session with `slots` task slots, and with `extra` settings beside the usual ones."""
    from pyspark.sql import SparkSession

    connector = ",".join(map(str, sorted(jars.fetch("spark-kafka")["spark-kafka"].glob("*.jar"))))
    builder = SparkSession.builder.master(f"local[{slots}]").appName("realtime")
    for key, value in {
        "spark.jars": connector,
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.port": "0",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.realTimeMode.minBatchDuration": "1000ms",
        **extra,
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _start(spark: SparkSession, chain: Chain, servers: str, batch: str | None, partitions: int) -> None:
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    rows = source.option("subscribe", chain.source).option("startingOffsets", "earliest")
    stream = _stages(rows.option("kafka.fetch.max.wait.ms", "5").load(), chain, partitions)
    out = stream.writeStream.queryName(chain.name).format("kafka").option("kafka.bootstrap.servers", servers)
    out = out.option("topic", chain.sink).option("checkpointLocation", tempfile.mkdtemp(prefix="treadle-"))
    if batch is not None:
        out = out.outputMode("update").trigger(realTime=batch)  # type: ignore[call-overload]
    out.start()


def _stages(rows: DataFrame, chain: Chain, partitions: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody does

    rows = rows.select(F.col("value").cast("string").alias("v"), F.col("value").cast("string").alias("h"))
    for number, cost in enumerate(chain.costs):
        if number:
            rows = rows.repartition(partitions, "h")  # a stage boundary; in Real-Time Mode each stage has its threads
        rows = rows.withColumn("h", F.expr(burn("h", cost)))
        if not number and chain.keeps < SIXTEEN:
            rows = rows.where(f"cast(v as bigint) % {SIXTEEN} < {chain.keeps}")
    return rows.select(F.col("v").alias("value"), F.col("h").alias("key"))


if __name__ == "__main__":
    _main()
