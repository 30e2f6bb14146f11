"""Starts Structured Streaming queries, and says in one line why one could not be started or has failed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import EngineError
from treadle.pipelines.nodes.node import Node

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class Stopped(EngineError):  # noqa: N818 - nothing is wrong
    """A query is stopped: this batch is not done, and comes again with the next start.

    Spark must not take that for a failure. It knows an error of a batch function for its own interruption by these very
    words (SPARK-39218).
    """

    def __init__(self, where: str = "") -> None:
        words = "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
        super().__init__(f"stopped before its batch was done; {words}", where=where)


@contextmanager
def interruptible() -> Iterator[None]:
    """A batch in Python that Spark interrupts, to stop its query, ends with `Stopped` and not with Spark's own words.

    Spark looks for the interruption in the whole text of the error, and a long one overflows its stack.
    """
    try:
        yield
    except Exception as error:
        if "InterruptedException" not in str(error):
            raise
        raise Stopped from None


def started(
    writer: Any, node: Node, key: str, checkpoint: Path, modes: Sequence[str] = ("append", "update")
) -> StreamingQuery:
    """Start it in the mode that its plan allows: rows that are final, or, where no row ever is, rows as they change.

    `key` is its name in Spark, where several pipelines may run.
    """
    from pyspark.errors import AnalysisException

    name = node.name if node.format == "memory" else key  # there it is also that of a table
    writer = writer.queryName(name).option("checkpointLocation", str(checkpoint))
    refused: AnalysisException | None = None
    for mode in modes:
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
    """The line of a Spark error that says what happened: what a Python function raised, or else what a task died of."""
    lines = error.splitlines()
    raised: list[str] = []
    for at, line in enumerate(lines):
        if line.rstrip().endswith("Traceback (most recent call last):"):
            # A traceback is indented, and what was raised is the first line after it that is not.
            end = next((text for text in lines[at + 1 :] if text[:1] not in ("", " ", "\t")), "")
            if not end.startswith("py4j."):
                raised.append(end.removeprefix("pyspark.errors.exceptions.captured."))
    lost = re.search(r"Lost task [^\n]*? executor [^\n]*?\): (.+)", error)
    first = next((line.strip() for line in lines if line.strip()), "no reason was given")
    return (raised[-1] if raised else lost[1] if lost else re.sub(_FAILED, "", first))[:500]


_FAILED = r"^(\[STREAM_FAILED\] )?(Query \[.*?\] terminated with exception: )?"
