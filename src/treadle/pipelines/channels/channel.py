"""What the runner asks of a channel, whatever keeps its rows. It is a promise, not code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from treadle.pipelines.channels.ledger import ArrivalStats
from treadle.pipelines.channels.view import Backlog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from treadle.pipelines.channels.cluster import Cluster


class Source(Protocol):
    """Rows that some hops read, each known by its name, whoever writes them."""

    name: str
    schema: Any
    limit_rows: int
    asks: bool
    """Whether its readers ask before each batch, in the JVM, how many rows they may have."""

    @property
    def cluster(self) -> Cluster | None:
        """The brokers that it needs, if any."""

    @property
    def rows(self) -> int:
        """What its slowest reader has still to read."""

    @property
    def total(self) -> int:
        """The rows that have ever come, counted from wherever it began."""

    @property
    def full(self) -> bool:
        """Whether its writer has to wait."""

    def register(self, consumer: str) -> None:
        """From now on what this one has not read yet is kept."""

    def forget_others(self) -> None:
        """Readers of an earlier run that are no more keep nothing."""

    def refresh(self) -> bool:
        """Look again; true if there is something new."""

    def backlog(self, consumer: str) -> Backlog: ...

    def collect(self) -> int:
        """Remove what all readers have read."""

    def read(self, spark: SparkSession, hop: str, consumer: str) -> DataFrame:
        """Its rows as a streaming DataFrame."""

    def begin(self, consumer: str, batch_id: int) -> Sequence[ArrivalStats] | None:
        """A batch that Spark has planned is to be read: its rows, or None where that is not decided yet.

        Raises Replan where the query must be started anew to read it right. Not for readers that ask.
        """

    def finish(self, consumer: str) -> None:
        """The batch that was begun is done."""


class Channel(Source, Protocol):
    """Rows on their way from one hop to others."""

    @property
    def batch(self) -> int:
        """The last one that was written, -1 before the first."""

    def append(self, rows: DataFrame, batch_id: int, born: Mapping[str, str]) -> int:
        """Append a batch, as in foreachBatch; if it was there already, nothing happens. Returns the number of rows.

        `born`: the `oldest` and `mean` arrival in microseconds, or the column `born` that has it.
        """


class Replan(Exception):  # noqa: N818 - nothing is wrong
    """Rows that were planned are void: the query has to start anew, with a plan that leaves them out."""
