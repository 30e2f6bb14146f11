"""The class `Pipeline` for users. `nodes.definition` has its methods that define nodes, `run` the code that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError
from treadle.pipelines.nodes.definition import Definition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The file that is being imported to load its pipeline; it must not run the pipeline during the import.
_importing: ContextVar[str | None] = ContextVar("importing", default=None)


class Pipeline(Definition):
    """A graph of sources, operators and sinks.

    >>> p = Pipeline("fraud")
    >>> @p.source
    ... def payments(spark):
    ...     return spark.readStream.format("rate").load()
    >>> @p.operator
    ... def large(payments):
    ...     return payments.where("value > 100")
    >>> @p.sink(priority=10, latency_goal="1s")
    ... def alerts(large, batch_id):
    ...     large.write.mode("append").parquet("alerts")
    >>> [node.name for node in p.nodes]
    ['payments', 'large', 'alerts']
    """

    def run(self, spark: SparkSession | None = None, **options: Any) -> Any:
        """Run the pipeline until it ends or is interrupted. Options as in `pipelines.run.start`: policy, layout, …"""
        self._ready_to_run()
        from treadle.pipelines.run.start import run

        return run(self, spark, **options)

    def start(self, spark: SparkSession | None = None, **options: Any) -> Any:
        """Start the pipeline and return while it runs. Options as in `pipelines.run.start`: policy, layout, slots, …"""
        self._ready_to_run()
        from treadle.pipelines.run.start import start

        return start(self, spark, **options)

    def _ready_to_run(self) -> None:
        if file := _importing.get():
            raise ConfigError(
                f"pipeline '{self.name}' is run while its file is being imported",
                where=file,
                remedy="put it under: if __name__ == '__main__':",
            )
        self.check()


@contextmanager
def importing(file: str) -> Iterator[None]:
    """Context in which running a pipeline is an error, while `file` is imported to load its pipeline."""
    token = _importing.set(file)
    try:
        yield
    finally:
        _importing.reset(token)
