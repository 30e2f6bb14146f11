"""Counts the rows that each sink of a pipeline gets, and can make a sink stall.

Rows are counted by Spark (`Observation`) when the sink's function runs its action, independently of Treadle.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from treadle.pipelines.api.pipeline import Pipeline
from treadle.pipelines.nodes.node import Kind, Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Consumers:
    """Counters of all sinks that are functions. To be made before the pipeline starts; a sink must run one action."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._counts: dict[str, dict[int, int]] = {}
        self._go_on: dict[str, threading.Event] = {}
        self._stalled: dict[str, threading.Event] = {}
        for node in pipeline.nodes:
            if node.kind is Kind.SINK:
                pipeline._nodes[node.name] = replace(node, function=self._counted(node), takes_batch_id=True)

    @property
    def rows(self) -> Mapping[str, int]:
        """By sink: the number of rows that it got so far. A batch that is repeated counts once."""
        return {name: sum(batches.copy().values()) for name, batches in self._counts.items()}

    def stall(self, sink: str) -> None:
        """Block all batches of a sink until `go_on`; return when the first one is blocked."""
        self._go_on[sink].clear()
        self._stalled[sink].wait()

    def go_on(self, sink: str) -> None:
        self._stalled[sink].clear()
        self._go_on[sink].set()

    def _counted(self, node: Node) -> Any:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        function, takes_batch_id = node.function, node.takes_batch_id
        assert function is not None
        batches = self._counts[node.name] = {}
        go_on = self._go_on[node.name] = threading.Event()
        stalled = self._stalled[node.name] = threading.Event()
        go_on.set()

        def consume(rows: DataFrame, batch_id: int) -> None:
            if not go_on.is_set():
                stalled.set()
                go_on.wait()
            count = Observation()
            watched = rows.observe(count, f.count(f.lit(1)).alias("rows"))
            if takes_batch_id:
                function(watched, batch_id)
            else:
                function(watched)
            batches[batch_id] = int(count.get["rows"])

        return consume
