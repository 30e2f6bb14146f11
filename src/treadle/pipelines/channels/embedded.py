"""The embedded channel between two hops: adapts the folder of `log` to the interface `Channel` and to DataFrames.

It knows the position of each reader and the limit of rows, but not what the readers are or when they run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.errors import ConfigError, EngineError
from treadle.pipelines.channels import log
from treadle.pipelines.channels.ledger import ArrivalStats
from treadle.pipelines.channels.view import Backlog, View
from treadle.pipelines.spark.jvm import CHANNEL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


class Embedded:
    """One embedded channel. Its writer has to wait while its slowest reader is `limit_rows` behind."""

    asks = True
    cluster = None

    def __init__(self, folder: Path, schema: StructType | str, *, limit_rows: int) -> None:
        self.name = folder.name
        self.folder = folder.absolute()
        self.schema = schema
        self.limit_rows = limit_rows
        log.prepare(folder, schema)
        self.view = View(self.folder, watch=True)
        self.positions: dict[str, int] = {}
        self._keeping = threading.Lock()
        """Held while it is decided which rows are kept."""

    def register(self, consumer: str) -> None:
        """Register a consumer: from now on the rows that it has not read are kept.

        A new one begins with the first row that is still there.
        """
        with self._keeping:
            position = log.register_consumer(self.folder, consumer)
        self.view.refresh()
        if position > self.view.end:  # new rows would get numbers that count as read
            raise EngineError(
                f"hop '{consumer}' has read up to row {position}, but the channel ends at {self.view.end}",
                where=str(self.folder),
                remedy="put the channel back from a copy; to start from nothing, delete the pipeline's folder",
            )
        self.positions[consumer] = position

    def forget_others(self) -> None:
        """Remove readers that are not registered: otherwise rows would be kept for readers of an earlier run."""
        for name in log.positions(self.folder).keys() - self.positions.keys():
            log.suspend_consumer(self.folder, name)

    def leave(self, consumer: str) -> None:
        """Keep no more rows for a consumer. If it registers again, it goes on with what is left of its rows."""
        self.positions.pop(consumer, None)
        log.suspend_consumer(self.folder, consumer)

    def end(self) -> int:
        """The number of the next row."""
        self.view.refresh()
        return self.view.end

    def has_read(self, consumer: str, end: int) -> bool:
        """Whether a consumer is done with all rows before the number `end`."""
        return self.positions.get(consumer, end) >= end

    def refresh(self) -> bool:
        return self.view.refresh()

    def backlog(self, consumer: str) -> Backlog:
        return self.view.backlog(self.positions.get(consumer, self.view.end))

    def read_up_to(self, consumer: str, position: int) -> None:
        if consumer in self.positions:  # it may have left
            self.positions[consumer] = max(position, self.positions[consumer])

    def begin(self, consumer: str, batch_id: int) -> Sequence[ArrivalStats] | None:  # noqa: ARG002 - it has row numbers
        """Read the position from disk, for hops that do not wait in their source because they also read elsewhere."""
        before = self.positions[consumer]
        now = log.positions(self.folder).get(consumer, before)
        self.positions[consumer] = now
        return ()

    def finish(self, consumer: str) -> None:
        """Do nothing: `begin` and `collect` read the position from disk."""

    @property
    def rows(self) -> int:
        """The backlog of the slowest reader, in rows."""
        return self.view.end - min(list(self.positions.values()), default=self.view.end)

    @property
    def total(self) -> int:
        return self.view.end

    @property
    def batch(self) -> int:
        return self.view.epoch

    @property
    def full(self) -> bool:
        return self.rows >= self.limit_rows

    def close(self) -> None:
        """Stop watching the folder."""
        self.view.close()

    def collect(self) -> int:
        """Delete segments that all readers have read. Positions are read from disk: not all readers report them."""
        with self._keeping:
            for consumer, position in log.positions(self.folder).items():
                self.read_up_to(consumer, position)
            return log.collect(self.folder, self.view)

    def read(self, spark: SparkSession, hop: str, consumer: str) -> DataFrame:
        """Return the rows as a streaming DataFrame. `hop` is the hop's key in the JVM, where it waits for grants."""
        since = str(log.first_row(self.folder, consumer))
        options = {"path": str(self.folder), "hop": hop, "consumer": consumer, "since": since}
        return spark.readStream.format(CHANNEL).options(**options).load()

    def writer(self, rows: DataFrame, hop: str) -> DataStreamWriter:
        """A stream writer that appends the rows exactly once."""
        return rows.writeStream.format(CHANNEL).options(path=str(self.folder), hop=hop)

    def append(self, rows: DataFrame, batch_id: int, born: Mapping[str, str]) -> int:
        """Append a batch, as in foreachBatch; if it was there already, nothing happens. Returns the number of rows."""
        before = self.view.end
        options = {"path": str(self.folder), "epoch": str(batch_id), **born}
        rows.write.format(CHANNEL).options(**options).mode("append").save()
        self.view.refresh()
        return self.view.end - before


def check_limit(rows: int) -> int:
    """Return a limit of rows if it is a whole number from 1 on; raise otherwise."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ConfigError(f"limit_rows is {rows!r}", where="channels", remedy="give a whole number from 1 on")
    return rows
