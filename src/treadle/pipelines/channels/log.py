"""The embedded channel from Python: a folder that is an append-only log of Arrow segments, addressed by row number.

It knows the writer, the position of each consumer, and what may be deleted, but not what a row means or which hops
write and read it. Everything becomes visible by one rename, so a process may be killed at any point.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import pyarrow as pa

from treadle.errors import ConfigError, EngineError
from treadle.linux.files.file_lock import Lock, holder
from treadle.loop.engine import Clock, SystemClock
from treadle.pipelines.channels.positions import (
    TMP,
    first_row,
    positions,
    register_consumer,
    remove_consumer,
    replace,
    set_position,
    suspend_consumer,
    unwritten,
)
from treadle.pipelines.channels.segment import (
    SUFFIX,
    Rows,
    Segment,
    arrival,
    arrow_schema,
    conform,
    load,
    parse,
    spark_json,
    store,
)
from treadle.pipelines.channels.view import Backlog, Folder, View

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "Backlog",
    "Problem",
    "View",
    "Writer",
    "check_schema",
    "collect",
    "first_row",
    "positions",
    "prepare",
    "read",
    "register_consumer",
    "remove_consumer",
    "schema_of",
    "set_position",
    "suspend_consumer",
    "verify",
]


class Writer:
    """The only writer of a channel, which stays locked until `close`. To be used by one thread.

    Back-pressure: with `limit_rows` or `limit_bytes`, `append` waits while the slowest consumer is that far behind
    (without consumers, all rows count). So a channel holds at most the limit, the rows of one append, and rows that
    `collect` has not deleted yet.
    """

    def __init__(
        self,
        folder: Folder,
        schema: pa.Schema | StructType | str,
        *,
        limit_rows: int | None = None,
        limit_bytes: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        for name, limit in (("limit_rows", limit_rows), ("limit_bytes", limit_bytes)):
            if limit is not None and limit < 1:
                raise ConfigError(
                    f"{name} can't be {limit}", where=str(folder), remedy="give at least 1, or None for no limit"
                )
        self.folder = Path(folder)
        self.schema = arrow_schema(schema)
        self.limit_rows = limit_rows
        self.limit_bytes = limit_bytes
        self._clock = clock or SystemClock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.folder)
        except OSError as error:
            raise unwritten(self.folder, error) from error
        self._view = View(self.folder)
        self._sound = False
        self.end = 0
        """The number of the next row."""
        self.epoch = -1
        """The last epoch committed, -1 before the first."""
        try:
            _settle_schema(self.folder, self.schema)
            self._recover()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._lock.release()

    @property
    def full(self) -> bool:
        """Whether `append` would wait."""
        if self.limit_rows is None and self.limit_bytes is None:
            return False
        self._view.refresh()
        slowest = max(self._view.start, min(positions(self.folder).values(), default=0))
        if self.limit_rows is not None and self._view.end - slowest >= self.limit_rows:
            return True
        return self.limit_bytes is not None and self._view.backlog(slowest).bytes >= self.limit_bytes

    def append(
        self,
        rows: Rows,
        *,
        born: str | tuple[float, float] | None = None,
        epoch: int | None = None,
        timeout: float | None = None,
    ) -> Segment | None:
        """Add the rows as one segment. Return None if there are no rows, or if this epoch is committed already.

        `born` gives the arrival time of the rows: a timestamp column, (oldest, mean) in epoch seconds, or None for now.
        """
        now = time.time()
        self._check_open()
        if not self._sound:
            self._recover()
        if epoch is not None and epoch <= self.epoch:
            return None
        table = conform(rows, self.schema, str(self.folder))
        if not table.num_rows:
            return None
        oldest, mean = arrival(table, born, now)
        self._wait(timeout)
        number = self.epoch + 1 if epoch is None else epoch
        return self._commit(table, Segment(self.end, table.num_rows, oldest, mean, number))

    def _wait(self, timeout: float | None) -> None:
        until = math.inf if timeout is None else self._clock.now() + timeout
        while self.full:
            if self._clock.now() >= until:
                raise EngineError(
                    f"the channel is still full after {timeout:g} s",
                    where=str(self.folder),
                    remedy="see why its slowest consumer does not read, remove it if it has ended, or raise the limit",
                )
            self._clock.sleep(_POLL)
            self._check_open()  # another thread may have closed it, because nothing reads any more

    def _check_open(self) -> None:
        if not self._lock.held:
            raise EngineError("this writer is closed", where=str(self.folder), remedy="open the channel again")

    def _commit(self, table: pa.Table, segment: Segment) -> Segment:
        tmp = self.folder / f"{TMP}{segment.first:020d}"
        self._sound = False  # if this is interrupted, before or after the rename, the truth is on disk
        try:
            size = store(tmp, table)
            os.rename(tmp, self.folder / segment.name)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(tmp)
            if isinstance(error, OSError):
                raise unwritten(self.folder / segment.name, error) from error
            raise
        self.end, self.epoch, self._sound = segment.end, segment.epoch, True
        return Segment(segment.first, segment.rows, segment.oldest, segment.mean, segment.epoch, size)

    def _recover(self) -> None:
        """Removes what an interrupted writer left, and finds out where the channel ends."""
        for name in os.listdir(self.folder):
            if name.startswith(TMP):
                (self.folder / name).unlink(missing_ok=True)
        self._view.rescan()
        if len({segment.epoch for segment in self._view.hidden}) > 1:
            # An interrupted commit leaves segments of its own epoch only; here a visible segment is gone.
            raise EngineError(
                f"the rows from {self._view.end} to {self._view.hidden[0].first} are missing, but there are later ones",
                where=str(self.folder),
                remedy="put the segment back from a copy, or remove those behind the gap to go on without them",
            )
        for segment in self._view.hidden:
            (self.folder / segment.name).unlink(missing_ok=True)
        self.end, self.epoch = self._view.end, self._view.epoch
        self._sound = True


def prepare(folder: Folder, schema: pa.Schema | StructType | str) -> None:
    """Makes the folder, or checks its schema; removes what a crash left if no writer is active."""
    if holder(Path(folder)) is None:
        with Writer(folder, schema):
            return
    _settle_schema(Path(folder), arrow_schema(schema))


def check_schema(folder: Folder, schema: pa.Schema | StructType | str) -> None:
    """Raise an EngineError if the folder is a channel with another schema."""
    if (Path(folder) / _SCHEMA).exists():
        _settle_schema(Path(folder), arrow_schema(schema))


def read(folder: Folder, start: int | None = None, end: int | None = None) -> pa.Table:
    """Exactly the rows [start, end), by default all visible ones, in memory: for tests and inspection."""
    view = View(folder)
    start = view.start if start is None else start
    end = view.end if end is None else end
    if not view.start <= start <= end <= view.end:
        raise EngineError(
            f"rows {start} to {end} were requested, but it has {view.start} to {view.end}",
            where=str(folder),
            remedy="request rows of that range",
        )
    schema = schema_of(view.folder)
    parts = [
        load(view.folder, segment, schema).slice(max(0, start - segment.first), end - max(start, segment.first))
        for segment in view.segments
        if segment.rows and segment.first < end and segment.end > start
    ]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def collect(folder: Folder, view: View | None = None) -> int:
    """Delete the segments that all consumers have read, except the last segment; return how many were deleted.

    The oldest are deleted first: if this is interrupted, the remaining ones have no gap. Without consumers nothing is
    deleted. With a `view` the folder is not listed again.
    """
    passed = min(positions(folder).values(), default=0)
    segments = (View(folder) if view is None else view).segments
    old = list(itertools.takewhile(lambda segment: segment.end <= passed, segments[:-1]))
    for segment in old:
        (Path(folder) / segment.name).unlink(missing_ok=True)
    return len(old)


class Problem(NamedTuple):
    """A fault that `verify` has found: its kind, the file, and a description."""

    kind: Literal["gap", "overlap", "damaged", "leftover", "foreign", "position", "schema"]
    path: Path
    what: str


def verify(folder: Folder) -> list[Problem]:
    """Find all faults of a channel, reading every row. Unfinished files of an active writer are no faults."""
    view = View(folder)
    base = view.folder
    found = [] if holder(base) is not None else list(_unfinished(view))
    try:
        positions(base)
    except EngineError as error:
        found.append(Problem("position", Path(error.where), error.message))
    try:
        schema = schema_of(base)
    except EngineError as error:
        return [*found, Problem("schema", base / _SCHEMA, error.message)]
    for segment in filter(lambda segment: segment.rows, view.segments):
        try:
            load(base, segment, schema, full=True)
        except EngineError as error:
            found.append(Problem("damaged", base / segment.name, error.message))
    return found


def _unfinished(view: View) -> Iterator[Problem]:
    for segment in view.hidden:
        what = f"hidden, as the visible rows end at {view.end}"
        yield Problem("gap" if segment.first > view.end else "overlap", view.folder / segment.name, what)
    for name in sorted(os.listdir(view.folder)) if view.folder.is_dir() else ():
        if name.startswith(TMP):
            yield Problem("leftover", view.folder / name, "left by an interrupted writer")
        elif name.endswith(SUFFIX) and parse(name) is None:
            yield Problem("foreign", view.folder / name, "not named as a segment")


def schema_of(folder: Path) -> pa.Schema:
    """The schema of an existing channel."""
    path = folder / _SCHEMA
    try:
        return arrow_schema(path.read_text())
    except FileNotFoundError:
        raise EngineError("there is no channel here", where=str(folder), remedy="write to it first") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise EngineError(
            f"the channel's schema is damaged: {error}", where=str(path), remedy="put it back from a copy, or delete it"
        ) from error


def _settle_schema(folder: Path, schema: pa.Schema) -> None:
    """Writes the schema of a new channel; the schema of an existing channel must be the same."""
    if not (folder / _SCHEMA).exists():
        replace(folder / _SCHEMA, spark_json(schema))
        return
    there = {column.name: column for column in schema_of(folder)}
    for column in schema:
        if column.name not in there or not column.equals(there[column.name]):
            old = there.get(column.name, "missing")
            raise _other_schema(folder, f"column '{column.name}' is {old} in the channel, now {column}")
    for name in there:
        if name not in schema.names:
            raise _other_schema(folder, f"column '{name}' of the channel is missing")


def _other_schema(folder: Path, what: str) -> EngineError:
    return EngineError(what, where=str(folder), remedy="write the same columns, or start with an empty folder")


_SCHEMA = "schema.json"
_POLL = 0.005
