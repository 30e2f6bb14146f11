"""One segment of an embedded channel: what its name says, and its rows as Arrow under Spark's types.

It knows single files and rows in memory; `log` knows which segments make up a channel, its writer and its readers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import ipc

from treadle.errors import ConfigError, EngineError
from treadle.pipelines.nodes import ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_ROWS = 10_000
"""Most rows in a record batch, which a reader holds in memory at a time."""

SUFFIX = ".arrow"

Rows = Any
"""What can be appended to a channel: an Arrow table or record batch, a pandas frame, a sequence of dicts."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A file with the rows [first, end) of a channel.

    `oldest` and `mean` are arrival times of the source rows from which these rows were made, in epoch seconds.
    """

    first: int
    rows: int
    oldest: float
    mean: float
    epoch: int
    bytes: int = 0
    found_as: str = field(default="", repr=False, compare=False)
    """The file's name, if the segment was read from disk: floats may not hold the times in it to the microsecond."""

    @property
    def end(self) -> int:
        return self.first + self.rows

    @property
    def name(self) -> str:
        if self.found_as:
            return self.found_as
        oldest, mean = (round(t * 1e6) for t in (self.oldest, self.mean))
        return f"{self.first:020d}-{self.rows}-{oldest}-{mean}-{self.epoch}{SUFFIX}"


def parse(name: str, size: int = 0) -> Segment | None:
    """The segment of a file name, or None if the name is not one of a segment."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first, rows, oldest, mean, epoch = map(int, match.groups())
    return Segment(first, rows, oldest / 1e6, mean / 1e6, epoch, size, name)


def visible(ordered: Sequence[Segment]) -> tuple[list[Segment], list[Segment]]:
    """Split segments, sorted by name, into the visible ones, up to the first gap or overlap, and the hidden others."""
    count = min(1, len(ordered))
    while count < len(ordered) and ordered[count].first == ordered[count - 1].end:
        count += 1
    return list(ordered[:count]), list(ordered[count:])


def store(path: Path, table: pa.Table) -> int:
    """Writes the rows as a file and returns its size."""
    whole = table if all(column.num_chunks <= 1 for column in table.columns) else table.combine_chunks()
    with pa.OSFile(str(path), "wb") as sink:
        with ipc.new_file(sink, table.schema) as writer:
            writer.write_table(whole, max_chunksize=BATCH_ROWS)
        return int(sink.tell())


def load(folder: Path, segment: Segment, schema: pa.Schema, *, full: bool = False) -> pa.Table:
    """Read the rows of a segment, in the channel's schema; with `full` check every value.

    A damaged file raises an error and is not removed.
    """
    path = folder / segment.name
    try:
        with pa.memory_map(str(path)) as source, ipc.open_file(source) as reader:
            table = reader.read_all()
        table.validate(full=full)
    except FileNotFoundError:
        raise EngineError(
            f"rows {segment.first} to {segment.end} are no longer there",
            where=str(path),
            remedy="read the channel again",
        ) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, segment, str(error)) from error
    if table.num_rows != segment.rows:
        raise _damaged(path, segment, f"it holds {table.num_rows} rows")
    try:
        return conform(table, schema, str(path))
    except EngineError as error:
        raise _damaged(path, segment, error.message) from error


def arrow_schema(schema: pa.Schema | StructType | str) -> pa.Schema:
    """Return the Arrow schema that Spark uses for this schema. Text is Spark's JSON or DDL; no session is needed."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import DataType, StructType

    try:
        if isinstance(schema, str):
            text = schema.lstrip()
            if not text:  # which Spark takes for a schema without columns
                raise ConfigError("the schema is empty", remedy="name the columns: 'id bigint, at timestamp'")
            spark: DataType
            if text.startswith("{"):
                spark = StructType.fromJson(json.loads(text))
            elif SparkContext._active_spark_context is None:
                spark = ddl.parse(text)
            else:
                spark = StructType.fromDDL(text)
            if not isinstance(spark, StructType):
                raise ConfigError(
                    f"'{schema}' is not a schema of columns", remedy="name them: 'id bigint, at timestamp'"
                )
        else:
            spark = schema if isinstance(schema, StructType) else from_arrow_schema(schema)
        made = to_arrow_schema(spark, timezone="UTC")
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"not a schema that Spark knows: {error}", remedy="use types that Spark has") from error
    _check_names(made.names)
    if isinstance(schema, pa.Schema):
        for given, wanted in zip(schema, made, strict=True):
            if given.type != wanted.type:
                raise ConfigError(
                    f"column '{given.name}' is {given.type}, which Spark keeps as {wanted.type}",
                    remedy=f"declare it as {wanted.type}",
                )
    return made


def spark_json(schema: pa.Schema) -> str:
    """The schema in Spark's JSON form."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema).json()


def conform(rows: Rows, schema: pa.Schema, where: str) -> pa.Table:
    """Return the rows as a table of exactly this schema, with columns matched by name. Raises for the first misfit."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        _same_columns(rows.column_names, schema, where)
        columns = [_as_declared(rows.column(column.name), column, where) for column in schema]
    elif hasattr(rows, "columns"):
        _same_columns([str(name) for name in rows.columns], schema, where)
        columns = [_built(rows[column.name], column, where, pandas=True) for column in schema]
    else:
        for names in {tuple(row): None for row in rows}:
            _same_columns(names, schema, where)
        columns = [_built([row[column.name] for row in rows], column, where, pandas=False) for column in schema]
    for column, values in zip(schema, columns, strict=True):
        if values.null_count and not column.nullable:
            raise _misfit(column.name, "has nulls but is declared without", where)
    return pa.Table.from_arrays(columns, schema=schema)


def arrival(table: pa.Table, born: str | tuple[float, float] | None, now: float) -> tuple[float, float]:
    """Oldest and mean arrival time of the rows: by a column, as given, or now. Times before 1970 count as 1970."""
    if isinstance(born, str):
        if born not in table.column_names or not pa.types.is_timestamp(table.schema.field(born).type):
            raise ConfigError(
                f"'{born}' is not a timestamp column", remedy="name one, or give (oldest, mean) in seconds"
            )
        known = table.column(born).drop_null().cast(pa.int64()).to_numpy()
        if not len(known):
            return now, now
        first = int(known.min())
        born = first / 1e6, (first + float((known - first).mean())) / 1e6
    oldest, mean = (now, now) if born is None else born
    if not (math.isfinite(oldest) and math.isfinite(mean)):
        raise ConfigError(f"arrival times {oldest}, {mean} are not finite", remedy="give seconds since 1970")
    return max(0.0, oldest), max(0.0, mean)


def _same_columns(names: Sequence[str], schema: pa.Schema, where: str) -> None:
    _check_names(names, where)
    for name in schema.names:
        if name not in names:
            raise _misfit(name, "is missing", where)
    for name in names:
        if name not in schema.names:
            raise _misfit(name, "is not in the channel's schema", where)


def _check_names(names: Sequence[str], where: str = "") -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"column '{name}' is given more than once", where=where, remedy="give each its own name")


def _as_declared(values: pa.ChunkedArray, column: pa.Field, where: str) -> pa.ChunkedArray:
    if values.type != column.type:
        raise _misfit(column.name, f"is {values.type}, not {column.type}", where)
    return values


def _built(values: Any, column: pa.Field, where: str, *, pandas: bool) -> pa.Array | pa.ChunkedArray:
    # Arrow silently cuts the fraction off a float in an integer column.
    if pa.types.is_integer(column.type) and not pandas and any(isinstance(value, float) for value in values):
        raise _misfit(column.name, f"has a float, not {column.type}", where)
    try:
        return pa.array(values, type=column.type, from_pandas=pandas)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _misfit(column.name, f"does not fit {column.type}: {error}", where) from error


def _misfit(name: str, what: str, where: str) -> EngineError:
    return EngineError(f"column '{name}' {what}", where=where, remedy="make the rows fit the channel's schema")


def _damaged(path: Path, segment: Segment, what: str) -> EngineError:
    return EngineError(
        f"the segment of rows {segment.first} to {segment.end} is damaged: {what}",
        where=str(path),
        remedy=f"put the file back from a copy, or move every consumer to row {segment.end} to go on without",
    )


_NAME = re.compile(r"([0-9]{20})-([0-9]{1,18})-(-?[0-9]{1,19})-(-?[0-9]{1,19})-(-?[0-9]{1,19})\.arrow")
