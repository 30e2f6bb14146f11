"""Starts Structured Streaming queries, and says in one line why one could not be started or has failed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import EngineError
from treadle.pipelines.node import Node

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def started(writer: Any, node: Node, checkpoint: Path) -> StreamingQuery:
    """Start it in the mode that its plan allows: rows that are final, or, where no row ever is, rows as they change."""
    from pyspark.errors import AnalysisException

    writer = writer.queryName(node.name).option("checkpointLocation", str(checkpoint))
    refused: AnalysisException | None = None
    for mode in ("append", "update"):
        try:
            query: StreamingQuery = writer.outputMode(mode).start()
            return query
        except AnalysisException as error:
            refused = refused or error
            if "output mode" not in str(error).lower():
                break
    raise EngineError(
        f"Spark refuses it: {told(str(refused))}",
        where=node.where,
        remedy="see its code and the columns of its inputs",
    ) from refused


def told(error: str) -> str:
    """The line of a Spark error that says what happened: of a Python function that raised, its own last line."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line) and "py4j" not in line.lower()]
    return (raised[-1] if "Traceback" in error and raised else lines[0] if lines else "no reason was given")[:500]
