"""Encodes rows for Kafka: each is a JSON object, made by Spark's own functions, so that every type is restored exactly.

It knows values and types, not topics or their users. Values that are not such objects are counted and left out.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle import jars
from treadle.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import DataType, StructType

_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_FORMATS = {
    # Spark's own default ends at milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_CORRUPT = "_treadle_corrupt"
PATIENCE = 60.0
_V1 = "spark.sql.sources.useV1SourceList"


class Written(NamedTuple):
    """What a batch has written: rows, bytes of their values, and their oldest and mean arrival time in microseconds."""

    rows: int
    bytes: int
    oldest: int
    mean: int


class Bad(NamedTuple):
    """Values of a topic that are not rows: how many, and the position of the first."""

    rows: int
    partition: int
    offset: int


def load(spark: SparkSession) -> None:
    """Make Spark's Kafka source and sink known to a session, also to one that was started without them."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(_PROVIDER)
    except Exception:
        for path in jars.paths("spark-kafka"):
            loader.addURL(jvm.java.io.File(str(path)).toURI().toURL())
            if not str(context.master).startswith("local"):
                context._jsc.sc().addJar(str(path))


def checked(schema: Any, where: str) -> StructType:
    """Return the schema if a Kafka channel can carry all of its types; raise a ConfigError otherwise."""
    from pyspark.sql import types as t

    whole = t.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(whole, t.StructType):
        raise ConfigError(
            f"'{schema}' is not a schema of columns", where=f"channel '{where}'", remedy="write 'id bigint, …'"
        )
    for path, kind in _leaves(whole, ""):
        if not isinstance(kind, _carried()):
            raise ConfigError(
                f"column '{path}' is {kind.simpleString()}, which a Kafka channel can't carry",
                where=f"channel '{where}'",
                remedy="cast it, as to a string; or use channels='embedded'",
            )
    return whole


def decoded(rows: DataFrame, schema: StructType) -> DataFrame:
    """Decode the column `value` to the rows that `write` was given."""
    from pyspark.sql import functions as f

    row = f.from_json(f.col("value").cast("string"), schema, {**_FORMATS, "mode": "FAILFAST"})
    return rows.select(row.alias("row")).select("row.*")


def good(rows: DataFrame, schema: Any, name: str) -> DataFrame:
    """Decode the rows of a topic that others fill. Values without this schema are left out and counted, see `bad`."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructType

    whole = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(whole, StructType)
    looked = StructType([*whole.fields]).add(_CORRUPT, StringType())
    row = f.from_json(f.col("value").cast("string"), looked, {"columnNameOfCorruptRecord": _CORRUPT})
    parsed = rows.select(row.alias("row"), "partition", "offset")
    parsed = parsed.withColumn("bad", f.isnull("row") | f.isnotnull(f.col("row").getField(_CORRUPT)))
    count = f.count(f.when(f.col("bad"), 1)).alias("rows")
    first = f.min(f.when(f.col("bad"), f.struct("partition", "offset"))).alias("first")
    # `observe` also keeps Spark from parsing twice: no filter is moved through it.
    kept = parsed.observe(_observed(name), count, first).where("NOT bad")
    return kept.select(*[f.col("row").getField(column).alias(column) for column in whole.names])


def bad(query: StreamingQuery, name: str) -> Bad | None:
    """Return which values `good` has left out of the running batch, or None. Call it after the rows were used."""
    metrics = query._jsq.streamingQuery().lastExecution().observedMetrics()
    found = metrics.get(_observed(name))
    if found.isEmpty() or not found.get().getLong(0):
        return None
    first = found.get().getStruct(1)
    return Bad(int(found.get().getLong(0)), int(first.getInt(0)), int(first.getLong(1)))


def reported(metrics: Mapping[str, Any], name: str) -> Bad | None:
    """Return which values `good` has left out of a batch, or None, from the batch's observed metrics."""
    found = metrics.get(_observed(name))
    if found is None or not found["rows"]:
        return None
    return Bad(int(found["rows"]), int(found["first"]["partition"]), int(found["first"]["offset"]))


def write(rows: DataFrame, born: Mapping[str, str], bootstrap: str, topic: str, options: Mapping[str, str]) -> Written:
    """Append the rows to a topic and count them. If it raises, an unknown number of rows is written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    # Spark's older (V1) way to write to Kafka counts nothing. The setting is of the query's own session.
    settings = rows.sparkSession.conf
    older = str(settings.get(_V1)).split(",")
    if "kafka" in older:
        settings.set(_V1, ",".join(name for name in older if name != "kafka"))
    column = born.get("born")
    arrived = f.lit(None).cast("bigint") if column is None else f.unix_micros(f.col(f"`{column}`"))
    values = rows.select(f.to_json(f.struct("*"), _FORMATS).alias("value"), arrived.alias("born"))
    seen = Observation()
    count = f.count(f.lit(1)).alias("rows")
    size = f.sum(f.octet_length("value")).alias("bytes")
    counted = values.observe(seen, count, size, f.min("born").alias("oldest"), f.avg("born").alias("mean"))
    every = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **options}
    counted.select("value").write.format("kafka").options(**every).mode("append").save()
    found = _counts(seen)
    oldest = int(born.get("oldest", 0)) if found["oldest"] is None else int(found["oldest"])
    mean = int(born.get("mean", oldest)) if found["mean"] is None else int(found["mean"])
    return Written(int(found["rows"]), int(found["bytes"] or 0), oldest, mean)


def values(table: pa.Table) -> Iterator[bytes]:
    """Encode the rows of a table as Kafka values, without Spark."""
    for row in table.to_pylist():
        yield json.dumps({name: _plain(value) for name, value in row.items()}).encode()


def _counts(seen: Observation) -> dict[str, Any]:
    """Return the observed metrics, or raise after `PATIENCE` seconds: under heavy load Spark may never deliver them."""
    future: Any = seen._jo.future()  # type: ignore[union-attr]
    until = time.monotonic() + PATIENCE
    while not future.isCompleted():
        if time.monotonic() > until:
            raise EngineError(
                "Spark did not report how many rows it wrote", remedy="nothing to do: the batch is tried again"
            )
        time.sleep(0.001)
    return dict(seen.get)


def _plain(value: Any) -> Any:
    """Convert a value to the form that Spark's `from_json` needs."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        pairs = bool(value) and all(isinstance(inner, tuple) for inner in value)  # a map, as Arrow gives it
        return {str(key): _plain(inner) for key, inner in value} if pairs else [_plain(inner) for inner in value]
    return value


def _observed(name: str) -> str:
    return f"treadle bad {name}"


def _leaves(kind: DataType, path: str) -> Iterator[tuple[str, DataType]]:
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        for column in kind.fields:
            yield from _leaves(column.dataType, f"{path}.{column.name}" if path else column.name)
    elif isinstance(kind, t.ArrayType):
        yield from _leaves(kind.elementType, path)
    elif isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        yield from _leaves(kind.valueType, path)
    else:
        yield path, kind


def _carried() -> tuple[type, ...]:
    from pyspark.sql import types as t

    whole = (t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType, t.DateType)
    return (*whole, t.FloatType, t.DoubleType, t.StringType, t.BinaryType, t.TimestampType, t.TimestampNTZType)
