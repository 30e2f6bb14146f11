"""The class `Pipeline` for users. `nodes.definition` has its methods that define nodes, `run` the code that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError
from treadle.pipelines.api.files import being_imported, load_as
from treadle.pipelines.nodes.definition import Definition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    def other_version(self, file: str) -> Definition:
        """Load the pipeline of this name from `file.py` or `file.py:name`."""
        return load_as(Pipeline, file)

    def _ready_to_run(self) -> None:
        if file := being_imported():
            raise ConfigError(
                f"pipeline '{self.name}' is run while its file is being imported",
                where=file,
                remedy="put it under: if __name__ == '__main__':",
            )
        self.check()
