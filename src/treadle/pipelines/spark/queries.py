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
    """Raised in a batch whose query is being stopped. The batch is not done, and is repeated at the next start.

    Spark must not treat this as a failure. It recognises its own interruption in the error of a batch function by the
    exact words of this error's message (SPARK-39218).
    """

    def __init__(self, where: str = "") -> None:
        words = "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
        super().__init__(f"stopped before its batch was done; {words}", where=where)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Stopped` instead of Spark's own error when Spark interrupts a batch in Python to stop its query.

    Spark searches the whole text of the error for the interruption, and a long text overflows its stack.
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
    """Start a query in the first of `modes` that its plan allows: append (final rows), else update (changing rows).

    `key` is the query's name in Spark, where several pipelines may run.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException

    name = node.name if node.format == "memory" else key  # in that format it is also the name of a table
    writer = writer.queryName(name).option("checkpointLocation", str(checkpoint))
    refused: Exception | None = None
    for mode in modes:
        try:
            query: StreamingQuery = writer.outputMode(mode).start()
            return query
        except AnalysisException as error:
            refused = refused or error
            if "output mode" not in str(error).lower():
                break
        except Py4JJavaError as error:  # not one of Spark's own: as for a format that no class is found for
            refused = error
            break
    raise EngineError(
        f"Spark refuses it: {error_summary(str(getattr(refused, 'java_exception', refused)))}",
        where=node.where,
        remedy="see its code and the columns of its inputs",
    ) from refused


def error_summary(error: str) -> str:
    """The line of a Spark error that says what happened: the exception of a Python function, or why a task was lost."""
    lines = error.splitlines()
    raised: list[str] = []
    for at, line in enumerate(lines):
        if line.rstrip().endswith("Traceback (most recent call last):"):
            # A traceback is indented, and the exception is the first line after it that is not.
            end = next((text for text in lines[at + 1 :] if text[:1] not in ("", " ", "\t")), "")
            if not end.startswith("py4j."):
                raised.append(end.removeprefix("pyspark.errors.exceptions.captured."))
    lost = re.search(r"Lost task [^\n]*? executor [^\n]*?\): (.+)", error)
    first = next((line.strip() for line in lines if line.strip()), "no reason was given")
    return (raised[-1] if raised else lost[1] if lost else re.sub(_FAILED, "", first))[:500]


_FAILED = r"^(\[STREAM_FAILED\] )?(Query \[.*?\] terminated with exception: )?"
