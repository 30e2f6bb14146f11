"""Two streaming queries of the test's own session that read one channel, and all rows and batches that they had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.pipelines.api.query_gate import BatchFunction
from treadle.pipelines.channels.log import Writer
from treadle.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERIES = ("alerts", "bulk")


class Fed:
    """The queries `alerts` and `bulk`, until `ending` is closed."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        ending: ExitStack,
        wrap: Callable[[BatchFunction, int], BatchFunction] = lambda batch, _: batch,
        *,
        most_rows: int = 100,
    ) -> None:
        """`wrap` gets the function of a query's batches and the query's number; a batch has up to `most_rows`."""
        self.rows: dict[str, list[int]] = {name: [] for name in QUERIES}
        self.batches: dict[str, list[int]] = {name: [] for name in QUERIES}
        self.count = 0
        jvm.load(spark)
        self._writer = ending.enter_context(Writer(folder / "rows", "id long"))
        for number, name in enumerate(QUERIES):
            source = spark.readStream.format(jvm.CHANNEL).option("maxRowsPerTrigger", most_rows)
            batches = source.load(str(folder / "rows")).writeStream.foreachBatch(wrap(self._into(name), number))
            query = batches.queryName(name).option("checkpointLocation", str(folder / name))
            ending.callback(query.start().stop)

    def _into(self, name: str) -> BatchFunction:
        def batch(rows: DataFrame, batch_id: int) -> None:
            self.batches[name].append(batch_id)
            self.rows[name] += [row.id for row in rows.collect()]

        return batch

    def feed(self, count: int) -> None:
        self._writer.append([{"id": number} for number in range(self.count, self.count + count)])
        self.count += count

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Rows come all the time."""
        over = threading.Event()

        def fill() -> None:
            while not over.wait(0.02):
                self.feed(5)

        filler = threading.Thread(target=fill)
        filler.start()
        try:
            yield
        finally:
            over.set()
            filler.join()

    @property
    def whole(self) -> bool:
        """Whether each query has had every row once, in order, and every batch once."""
        for name in QUERIES:
            assert self.rows[name] == list(range(len(self.rows[name])))
            assert self.batches[name] == list(range(len(self.batches[name])))
        return all(len(self.rows[name]) == self.count for name in QUERIES)
