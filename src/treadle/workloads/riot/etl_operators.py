"""RIoTBench's ETL as functions of Spark DataFrames (Lachesis, section 6.2). `etl_reference` says what each computes.

Every row has the columns `id` and `created` of its input record. Lines have a column `line`; parts of messages have
`sensor_id`, `meta`, `obs_type` and `obs_val`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from treadle.workloads.riot.etl_reference import (
    ANNOTATED,
    BATCH,
    NULL,
    PART_TYPES,
    RANGES,
    SOURCE,
    UNITS,
    entity,
    interpolate,
)
from treadle.workloads.riot.keyed import with_memory
from treadle.workloads.riot.sensors import COLUMNS, annotation_table, sensor_ids

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

KEPT_MESSAGES = 10_000
"""The join forgets an incomplete message when it has seen a message with an id that is higher by this number."""
BUCKETS = 512
"""Size of the hash table of known sensor ids."""
ARROW_ROWS = 10_000
"""Most rows of a table that Python hands to Spark at once."""
_SENML = "e array<struct<n: string, v: string, sv: string>>, bt long"
_INSERTED = "id long, created timestamp, payload string, batch_rows int"


def senml_parse(lines: DataFrame) -> DataFrame:
    """Split each message into six parts: its source and five observations."""
    from pyspark.sql import functions as f

    message = f.from_json(f.expr("substring(line, instr(line, ',') + 1)"), _SENML).alias("m")
    position = f"{_value('longitude')}, ',', {_value('latitude')}"
    messages = lines.select("id", "created", message).selectExpr(
        "*", f"{_value(SOURCE)} AS sensor_id", f"concat(m.bt, ',', {position}) AS meta"
    )
    # The condition is inside `inline`: Spark would move a filter below `from_json`, and parse each message twice.
    parts = f"filter(m.e, p -> p.n IN ({_texts(PART_TYPES)}) AND coalesce(p.v, p.sv) IS NOT NULL)"
    whole = "sensor_id IS NOT NULL AND meta IS NOT NULL"
    found = messages.select("*", f.inline(f.expr(f"CASE WHEN {whole} THEN {parts} END")))
    return found.selectExpr("id", "created", "sensor_id", "meta", "n AS obs_type", "coalesce(v, sv) AS obs_val")


def range_filter(parts: DataFrame) -> DataFrame:
    """Replace observations that are no numbers within their ranges."""
    from pyspark.sql import functions as f

    value = "try_cast(obs_val AS float)"
    cases = [
        f"WHEN '{name}' THEN {value} BETWEEN float({low}) AND float({high})" for name, (low, high) in RANGES.items()
    ]
    valid = f"coalesce(CASE obs_type {' '.join(cases)} ELSE true END, false)"
    return parts.withColumn("obs_val", f.expr(f"if({valid}, obs_val, '{NULL}')"))


def bloom_filter(parts: DataFrame) -> DataFrame:
    """Replace the source of unknown sensors.

    A hash table in the plan takes the place of the Bloom filter. RIoTBench's filter is made for 20,000,000 ids (24 MB).
    With 2,162 ids in it fewer than one of 10^28 look-ups is a false positive, so both give the same results.
    """
    from pyspark.sql import functions as f

    return parts.withColumn("obs_val", f.expr(f"if(obs_type = '{SOURCE}' AND NOT {known()}, '{NULL}', obs_val)"))


def interpolation(parts: DataFrame) -> DataFrame:
    """Replace invalid observations by the mean of the last valid ones of the same sensor and type.

    Rows leave a batch in the order of their ids, as they came. State groups them by sensor, and in that order a join
    that reads a part of them would take the others for late ones.
    """
    interpolated = with_memory(parts, "sensor_id", _interpolate, "obs_val string")
    return interpolated.mapInArrow(_in_order, interpolated.schema)


def join(parts: DataFrame) -> DataFrame:
    """Put the six parts of each message together again, as one line of nine columns.

    Message ids serve as event times, in milliseconds, so that a watermark limits how many messages are kept.
    """
    from pyspark.sql import functions as f

    message = f.timestamp_millis(f.col("id") + 1)  # rows at the first watermark, 0, would count as late
    timed = parts.withColumn("message", message).withWatermark("message", f"{KEPT_MESSAGES} milliseconds")
    # Grouped by a field of a struct: grouped by the column itself, Spark would accept the output mode append, which is
    # tried first, and keep each line until the watermark has passed it.
    messages = timed.withColumn("of", f.struct("message")).groupBy("of.message")
    fields = [f.max(f.when(f.col("obs_type") == name, f.col("obs_val"))).alias(name) for name in PART_TYPES]
    found = messages.agg(
        f.min("id").alias("id"), f.min("created").alias("created"), f.min("meta").alias("meta"), *fields
    )
    complete = found.where(" AND ".join(f"{name} IS NOT NULL" for name in PART_TYPES))
    meta = {name: f"split(meta, ',')[{number}]" for number, name in enumerate(("timestamp", "longitude", "latitude"))}
    line = ", ".join(meta.get(name, name) for name in COLUMNS)
    return complete.selectExpr("id", "created", f"concat_ws(',', {line}) AS line")


def annotate(lines: DataFrame) -> DataFrame:
    """Append location and type of the sensor; drop records of sensors that the table does not have."""
    import pyarrow as pa
    from pyspark.sql import functions as f

    rows = [row.split(":", 1) for row in annotation_table()]
    table = pa.table({"sensor": [sensor for sensor, _ in rows], "annotation": [found for _, found in rows]})
    found = lines.join(f.broadcast(lines.sparkSession.createDataFrame(table)), f.expr("split(line, ',')[1] = sensor"))
    return found.selectExpr("id", "created", "concat(line, ',', annotation) AS line")


def table_insert(lines: DataFrame) -> DataFrame:
    """Build the entities of a table store, `BATCH` at a time; the insertion itself is disabled.

    Python divides the rows of a task in a micro-batch, since no expression numbers the rows of a stream. `batch_rows`
    is the number of rows that would be inserted together.
    """
    return lines.select("id", "created", "line").mapInArrow(_inserted, _INSERTED)


def csv_to_senml(lines: DataFrame) -> DataFrame:
    """Write each record as SenML again."""
    from pyspark.sql import functions as f

    cells = f.split("line", ",")
    entries = [_entry(name, cells[number]) for number, name in enumerate(ANNOTATED) if number]
    message = f.struct(f.array(*entries).alias("e"), cells[0].cast("long").alias("bt"))
    return lines.select("id", "created", f.to_json(message).alias("line"))


def publish(lines: DataFrame) -> DataFrame:
    """Publish the messages; sending them to a broker is disabled."""
    return lines.selectExpr("id", "created", "line AS payload")


def known() -> str:
    """The condition, in SQL, that `sensor_id` is the id of a known sensor.

    The ids are in one literal, by a hash: with a literal per id, planning a batch takes longer than running it.
    """
    buckets = [","] * BUCKETS
    for sensor in sensor_ids():
        buckets[zlib.crc32(sensor.encode()) % BUCKETS] += f"{sensor},"
    table = ";".join(buckets)
    bucket = f"get(split('{table}', ';'), crc32(sensor_id) % {BUCKETS})"
    return f"contains({bucket}, concat(',', sensor_id, ','))"


def _interpolate(recent: list[float], _sensor: str, obs_type: str, value: str) -> tuple[list[float], str]:
    return (recent, value) if obs_type == SOURCE else interpolate(recent, value)


def _in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    received = list(batches)
    if received:
        yield from pa.Table.from_batches(received).sort_by("id").to_batches(max_chunksize=ARROW_ROWS)


def _inserted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    received = list(batches)
    if not received:
        return
    rows = pa.Table.from_batches(received)
    for start in range(0, rows.num_rows, BATCH):
        batch = rows.slice(start, BATCH)
        built = [entity(*row) for row in zip(batch["id"].to_pylist(), batch["line"].to_pylist(), strict=True)]
        made = pa.table(
            {
                "id": batch["id"],
                "created": batch["created"],
                "payload": pa.array(built, pa.string()),
                "batch_rows": pa.array([len(built)] * len(built), pa.int32()),
            }
        )
        yield from made.combine_chunks().to_batches()


def _value(name: str) -> str:
    """The value of the entry of this name in the message `m`, in SQL."""
    entry = f"get(filter(m.e, p -> p.n = '{name}'), 0)"
    return f"coalesce({entry}.v, {entry}.sv)"


def _entry(name: str, value: Column) -> Column:
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("string")
    number = name in UNITS
    return f.struct(
        (value if number else nothing).alias("v"),
        f.lit(UNITS.get(name, "string")).alias("u"),
        f.lit(name).alias("n"),
        (nothing if number else value).alias("sv"),
    )


def _texts(values: Iterable[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)
