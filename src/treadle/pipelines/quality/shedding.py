"""Drops rows in Spark: an expression in a query's plan that keeps a part of its rows, a part that can change any time.

No row goes through Python and no query starts anew; on a cluster the executors hear of changes from the driver. What is
kept carries its weight, so that what is counted of it can be corrected (`treadle.estimates`). How much is kept is
decided elsewhere. Stream-Economics section 3.2.
"""

from __future__ import annotations

import secrets
import zlib
from typing import TYPE_CHECKING, Any

from treadle.enforce.shed import Choice, Count
from treadle.estimates import WEIGHT
from treadle.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ARRIVED = " arrived"
"""What is added to the name of a stream to count its rows behind the drops."""


class Shedding:
    """The streams of one Spark session that may be shed, by name. With a `seed` the same rows have the same fate.

    All that is done with a batch sees the same of its rows: it keeps the part that was set when it began, or, if the
    streams are `live`, at each moment the part that is set then. Real-time mode needs that: its batches are long.
    """

    def __init__(self, spark: SparkSession, *, seed: int = 0, live: bool = False) -> None:
        self._spark = spark
        self._seed = seed
        self._live = live
        self._jvm = jvm.load(spark)
        context: Any = spark.sparkContext
        self._host, self._port, self._secret = "", 0, ""
        if not str(context.master).startswith("local"):
            context._jsc.sc().addJar(str(jvm.jar()))
            self._host = str(context.getConf().get("spark.driver.host"))
            self._port = int(self._jvm.treadle.Shed.serve(self._host, secrets.token_hex(16)))
            self._secret = str(self._jvm.treadle.Shed.secret())

    def shed(self, rows: DataFrame, stream: str, choice: Choice | None = None) -> DataFrame:
        """These rows without those that are dropped, each with its weight; nothing is dropped until it is said."""
        from pyspark.sql import functions as f

        drawn = f"{WEIGHT}_drawn"
        chosen = self._weight(stream, choice or Choice())
        kept = self.weighed(rows).withColumn(drawn, chosen).where(f.col(drawn) > 0.0)
        # In the way of every row, so no optimizer can leave it out, as it does with a column that nobody reads.
        arrived = kept.where(self._arrived(stream))
        return arrived.withColumn(WEIGHT, f.col(WEIGHT) * f.col(drawn)).drop(drawn)

    @staticmethod
    def weighed(rows: DataFrame) -> DataFrame:
        """All of these rows; those that have no weight yet count for one."""
        from pyspark.sql import functions as f

        return rows if WEIGHT in rows.columns else rows.withColumn(WEIGHT, f.lit(1.0))

    def get(self, stream: str) -> float:
        return float(self._jvm.treadle.Shed.get(stream))

    def set(self, stream: str, keep: float) -> None:
        """Keep such a part of it from now on."""
        self._jvm.treadle.Shed.set(stream, float(keep))

    def hold(self, seconds: float) -> None:
        """Let what is set hold for so long; after that all rows are kept until the next call.

        In real-time mode rows go on flowing while this process is stopped, and nobody would end the shedding.
        """
        self._jvm.treadle.Shed.hold(seconds)

    def release(self) -> None:
        """Let what is set hold for ever again, as before the first `hold`."""
        self._jvm.treadle.Shed.release()

    def counts(self) -> dict[str, Count]:
        """By stream the rows before the drops, and those that arrived behind them, by a count of their own.

        As far as known: executors report twice a second. Rows that are worked on again count once.
        """
        lines = str(self._jvm.treadle.Shed.counts()).splitlines()
        rows = {name: int(count) for name, count in (line.rsplit("\t", 1) for line in lines)}
        streams = [name for name in rows if not name.endswith(ARRIVED)]
        return {name: Count(rows[name], rows.get(name + ARRIVED, 0)) for name in streams}

    def forget(self, prefix: str) -> None:
        """Streams whose names begin so are kept whole again."""
        self._jvm.treadle.Shed.forget(prefix)

    def _weight(self, stream: str, choice: Choice) -> Column:
        """The expression in the JVM: what a row counts for, 0 if it is dropped."""
        from pyspark.sql import functions as f

        keep = self._jvm.treadle.SampleRows
        where = (stream, self._host, self._port, self._secret, self._seed, self._live)
        if choice.utility is not None:
            return self._called(keep.ByUtility(*where), stream, f.expr(choice.utility).cast("double"))
        if choice.key:
            return self._called(keep.ByKey(*where), stream, f.xxhash64(*[f.expr(each) for each in choice.key]))
        return self._called(keep.AtRandom(*where), stream)

    def _arrived(self, stream: str) -> Column:
        """True for each row, which is counted."""
        name = stream + ARRIVED
        function = self._jvm.treadle.SampleRows.Arrived(name, self._host, self._port, self._secret)
        return self._called(function, name, result="BooleanType")

    def _called(self, function: Any, stream: str, *more: Column, result: str = "DoubleType") -> Column:
        """A function of rows in the JVM, given what identifies a row within its batch."""
        from pyspark.sql import Column
        from pyspark.sql import functions as f

        # Spark gives these again whenever it works on a batch again. The time, a constant there, stands for the batch.
        random = f.rand(self._seed or zlib.crc32(stream.encode()))
        given: list[Column] = [f.unix_millis(f.current_timestamp()), f.spark_partition_id(), random, *more]
        context: Any = self._spark.sparkContext
        kind = getattr(self._jvm.org.apache.spark.sql.types.DataTypes, result)
        called = self._jvm.org.apache.spark.sql.functions.udf(function, kind).asNondeterministic()
        arguments = context._gateway.new_array(self._jvm.org.apache.spark.sql.Column, len(given))
        for position, column in enumerate(given):
            arguments[position] = column._jc
        return Column(called.apply(arguments))
