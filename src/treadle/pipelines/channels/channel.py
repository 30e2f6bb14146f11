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
    """Whether readers ask before each batch, in the JVM, how many rows they may have."""

    @property
    def cluster(self) -> Cluster | None:
        """The Kafka cluster that it needs, if any."""

    @property
    def rows(self) -> int:
        """The backlog of the slowest reader, in rows."""

    @property
    def total(self) -> int:
        """The rows that have ever arrived, counted from an arbitrary start."""

    @property
    def full(self) -> bool:
        """Whether its writer has to wait."""

    def register(self, consumer: str) -> None:
        """Register a consumer: from now on the rows that it has not read are kept."""

    def forget_others(self) -> None:
        """Remove readers that are not registered, so that readers of an earlier run keep no rows."""

    def refresh(self) -> bool:
        """Poll for changes; true if there is something new."""

    def backlog(self, consumer: str) -> Backlog: ...

    def collect(self) -> int:
        """Remove the rows that all readers have read."""

    def read(self, spark: SparkSession, hop: str, consumer: str) -> DataFrame:
        """Its rows as a streaming DataFrame."""

    def begin(self, consumer: str, batch_id: int) -> Sequence[ArrivalStats] | None:
        """Begin to read a batch that Spark has planned; return its rows' arrivals, or None while these are not decided.

        Raises Replan where the query must restart to read the batch correctly. Not for readers that ask.
        """

    def finish(self, consumer: str) -> None:
        """Note that the batch that was begun is done."""


class Channel(Source, Protocol):
    """Rows on their way from one hop to others."""

    @property
    def batch(self) -> int:
        """The number of the last batch written, -1 before the first."""

    def append(self, rows: DataFrame, batch_id: int, born: Mapping[str, str]) -> int:
        """Append a batch, as in foreachBatch; if it was there already, nothing happens. Returns the number of rows.

        `born` has the `oldest` and `mean` arrival in microseconds, or as `born` the name of the column with arrivals.
        """


class Replan(Exception):  # noqa: N818 - nothing is wrong
    """A planned batch has void rows: the query must restart with a plan that leaves them out."""
