"""The input of the papers' applications: rows of text, from a feed or a topic."""

from __future__ import annotations

from typing import Literal

from treadle.pipelines.api.pipeline import Pipeline

LINES = "lines"
"""The node that reads the rows."""
LINE = "id long, created timestamp, line string"
"""A row: its number, the time at which it was due, and the text of the record."""
Source = Literal["feed", "topic"]


def add_lines(p: Pipeline, source: Source, prefix: str = "") -> None:
    """Add the node to a pipeline. The topic's name begins with `prefix`."""
    if source == "topic":
        p.topic(LINES, schema=LINE, topic=f"{prefix}{LINES}")
    else:
        p.feed(LINES, schema=LINE)
