"""The interface of channels for the runner, whatever stores their rows: protocols without code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from treadle.pipelines.channels.ledger import ArrivalStats
from treadle.pipelines.channels.view import Backlog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from treadle.pipelines.channels.cluster import Cluster


class Source(Protocol):
    """Rows that hops read, whatever writes them; each reading hop is identified by its name."""

    name: str
    schema: Any
    limit_rows: int
    asks: bool
    """Whether the source in the JVM waits before each batch until the gate grants a number of rows."""

    @property
    def cluster(self) -> Cluster | None:
        """The Kafka cluster that stores the rows, if any."""

    @property
    def rows(self) -> int:
        """The backlog of the slowest reader, in rows."""

    @property
    def total(self) -> int:
        """The rows that have ever arrived, counted from an arbitrary start."""

    @property
    def full(self) -> bool:
        """Whether the writer has to wait, since the slowest reader is `limit_rows` behind."""

    def register(self, consumer: str) -> None:
        """Register a consumer: from now on the rows that it has not read are kept."""

    def leave(self, consumer: str) -> None:
        """Keep no more rows for a consumer. If it registers again, it goes on with the first row that it has not read.

        Of these rows it misses those that were removed meanwhile, because all other readers had read them.
        """

    def end(self) -> Any:
        """Where the rows end that have arrived by now, for `has_read`."""

    def has_read(self, consumer: str, end: Any) -> bool:
        """Whether a consumer is done with all rows up to an `end`."""

    def forget_others(self) -> None:
        """Remove readers that are not registered: otherwise rows would be kept for readers of an earlier run."""

    def refresh(self) -> bool:
        """Poll for changes; true if there is something new."""

    def backlog(self, consumer: str) -> Backlog: ...

    def collect(self) -> int:
        """Remove the rows that all readers have read."""

    def read(self, spark: SparkSession, hop: str, consumer: str) -> DataFrame:
        """Its rows as a streaming DataFrame."""

    def begin(self, consumer: str, batch_id: int) -> Sequence[ArrivalStats] | None:
        """Begin to read a batch that Spark has planned; return the arrival times of its rows.

        Returns None while it is not decided which rows belong to the channel; then call it again. Raises Replan if the
        query must restart to read the batch correctly. Not called for hops that wait in their source.
        """

    def finish(self, consumer: str) -> None:
        """Record that the batch that was passed to `begin` is done."""


class Channel(Source, Protocol):
    """Rows on their way from one hop to others."""

    @property
    def batch(self) -> int:
        """The number of the last batch written, -1 before the first."""

    def append(self, rows: DataFrame, batch_id: int, born: Mapping[str, str]) -> int:
        """Append a batch, as in foreachBatch; if it was there already, nothing happens. Returns the number of rows.

        `born` has the arrival times: either `oldest` and `mean` in microseconds, or as `born` the name of their column.
        """


class Replan(Exception):  # noqa: N818 - nothing is wrong
    """A planned batch has void rows, of a failed write: the query must restart with a plan that leaves them out."""
