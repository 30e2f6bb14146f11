"""Drops rows in Spark by an expression in a query's plan; the share of rows that it keeps can change at any time.

No row goes through Python and no query restarts; on a cluster the driver sends changes to the executors. Kept rows
carry a weight, so that results can be corrected for dropped rows (`treadle.estimates`). `promises` decides how many
rows are kept. Stream-Economics section 3.2.
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
"""A stream's rows after the drops are counted under the stream's name with this suffix."""


class Shedding:
    """The named streams of a Spark session whose rows may be dropped, and for each the share of its rows to keep.

    All actions on a batch see the same rows: a new share applies from the next batch on. If the streams are `live`, it
    applies at once. Real-time mode needs that, because its batches are long. A nonzero `seed` makes the choice of rows
    repeatable.
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
        """Return the rows that are kept, each with its weight. All rows are kept until `set` is called for the stream.

        `choice` is which rows are dropped first; by default any.
        """
        from pyspark.sql import functions as f

        drawn = f"{WEIGHT}_drawn"
        chosen = self._weight(stream, choice or Choice())
        kept = self.weighed(rows).withColumn(drawn, chosen).where(f.col(drawn) > 0.0)
        # A filter, which the optimizer can't remove; it would remove a column that is not read.
        arrived = kept.where(self._arrived(stream))
        return arrived.withColumn(WEIGHT, f.col(WEIGHT) * f.col(drawn)).drop(drawn)

    @staticmethod
    def weighed(rows: DataFrame) -> DataFrame:
        """Return all of these rows, with a weight of 1 if they have no weight column."""
        from pyspark.sql import functions as f

        return rows if WEIGHT in rows.columns else rows.withColumn(WEIGHT, f.lit(1.0))

    def get(self, stream: str) -> float:
        return float(self._jvm.treadle.Shed.get(stream))

    def set(self, stream: str, keep: float) -> None:
        """Set the share of a stream's rows to keep from now on, 0 to 1."""
        self._jvm.treadle.Shed.set(stream, float(keep))

    def hold(self, seconds: float) -> None:
        """Limit the effect of `set` to the next `seconds`: after that, all rows are kept until `hold` is called again.

        In real-time mode queries go on while this process is stopped, and nothing else would end the dropping.
        """
        self._jvm.treadle.Shed.hold(seconds)

    def release(self) -> None:
        """Remove the time limit of `hold`: what is set applies until it is changed, as before the first `hold`."""
        self._jvm.treadle.Shed.release()

    def counts(self) -> dict[str, Count]:
        """By stream: the rows before the drops, and the rows left after the drops, which a second expression counts.

        Executors report twice a second, so counts may lag. Rows that are processed again count once.
        """
        lines = str(self._jvm.treadle.Shed.counts()).splitlines()
        rows = {name: int(count) for name, count in (line.rsplit("\t", 1) for line in lines)}
        streams = [name for name in rows if not name.endswith(ARRIVED)]
        return {name: Count(rows[name], rows.get(name + ARRIVED, 0)) for name in streams}

    def forget(self, prefix: str) -> None:
        """Keep all rows of the streams whose names have this prefix, and forget the counts of these streams."""
        self._jvm.treadle.Shed.forget(prefix)

    def _weight(self, stream: str, choice: Choice) -> Column:
        """Return the JVM expression that computes the weight of a row, 0 if the row is dropped."""
        from pyspark.sql import functions as f

        keep = self._jvm.treadle.SampleRows
        where = (stream, self._host, self._port, self._secret, self._seed, self._live)
        if choice.utility is not None:
            return self._called(keep.ByUtility(*where), stream, f.expr(choice.utility).cast("double"))
        if choice.key:
            return self._called(keep.ByKey(*where), stream, f.xxhash64(*[f.expr(each) for each in choice.key]))
        return self._called(keep.AtRandom(*where), stream)

    def _arrived(self, stream: str) -> Column:
        """Return an expression that is true for each row, and counts the row."""
        name = stream + ARRIVED
        function = self._jvm.treadle.SampleRows.Arrived(name, self._host, self._port, self._secret)
        return self._called(function, name, result="BooleanType")

    def _called(self, function: Any, stream: str, *more: Column, result: str = "DoubleType") -> Column:
        """Return a column that calls a JVM function for each row.

        Its arguments identify the batch and, by partition and random number, the row; then come those in `more`.
        """
        from pyspark.sql import Column
        from pyspark.sql import functions as f

        # Spark repeats these values when it repeats a batch. The time is constant within a batch and identifies it.
        random = f.rand(self._seed or zlib.crc32(stream.encode()))
        given: list[Column] = [f.unix_millis(f.current_timestamp()), f.spark_partition_id(), random, *more]
        context: Any = self._spark.sparkContext
        kind = getattr(self._jvm.org.apache.spark.sql.types.DataTypes, result)
        called = self._jvm.org.apache.spark.sql.functions.udf(function, kind).asNondeterministic()
        arguments = context._gateway.new_array(self._jvm.org.apache.spark.sql.Column, len(given))
        for position, column in enumerate(given):
            arguments[position] = column._jc
        return Column(called.apply(arguments))
