"""Spark's progress reports of a streaming query: how many rows a batch took, and how many its sources still had.

This module reads a report and the offsets in it, both JSON. The backlog is the difference of two offsets, if the
offsets count rows, as Kafka's do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from treadle.errors import EngineError
from treadle.linux.files.bounded import decoded
from treadle.text import visible

NOT_ROWS = ("RateStream", "RatePerMicroBatch", "FileStream", "MemoryStream")
"""Sources whose offsets count seconds, files or batches, not rows: the first words of their descriptions."""
DEEPEST = 8
"""Maximum levels of an offset; Kafka's have two, topic and partition."""
LARGEST = 1 << 63
"""Offsets and numbers of rows must be below this number."""


@dataclass(frozen=True)
class Progress:
    """The report of a finished batch, or of a trigger without new rows."""

    run: str
    batch: int
    began: float
    """When the trigger started, in seconds since 1970."""
    seconds: float
    rows: int
    ends: Mapping[str, Any]
    """By source, the offset up to which the batch has read."""
    latest: Mapping[str, Any]
    """By source, the newest offset that was available."""
    unread: float
    """Rows that were available but not read, over all sources with offsets that count rows. A topic that is read twice
    counts twice."""

    @classmethod
    def parse(cls, text: str) -> Progress:
        """Parse what Spark calls a StreamingQueryProgress, in JSON."""
        try:
            return cls._of(decoded(text))
        except EngineError as error:
            raise EngineError(f"a progress report can't be read: {error.message}", where="Spark") from error
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            what = f"a progress report can't be read: {type(error).__name__}: {visible(str(error))[:200]}"
            raise EngineError(what, where="Spark") from error

    @classmethod
    def _of(cls, report: Any) -> Progress:
        names = [source["description"] for source in report["sources"]]
        ends, latest = (
            [_offset(source.get(key)) for source in report["sources"]] for key in ("endOffset", "latestOffset")
        )
        return cls(
            run=str(report["runId"]),
            batch=int(report["batchId"]),
            began=datetime.fromisoformat(report["timestamp"]).timestamp(),
            seconds=_count(report.get("batchDuration", 0)) / 1e3,
            rows=_count(report["numInputRows"]),
            ends=dict(zip(names, ends, strict=True)),
            latest=dict(zip(names, latest, strict=True)),
            unread=sum(rows for each in zip(names, latest, ends, strict=True) if not math.isnan(rows := _rows(*each))),
        )

    @property
    def waiting(self) -> float:
        """Rows between the end of this batch and the newest offsets; NaN if offsets do not count rows."""
        return self.behind(self.latest)

    def behind(self, latest: Mapping[str, Any]) -> float:
        """Return the rows between the end of this batch and these offsets; NaN if offsets do not count rows."""
        if not self.ends:
            return math.nan
        return sum(_rows(name, latest.get(name), end) for name, end in self.ends.items())


def _rows(source: str, later: Any, earlier: Any) -> float:
    return math.nan if source.startswith(NOT_ROWS) else difference(later, earlier)


def difference(later: Any, earlier: Any, depth: int = DEEPEST) -> float:
    """Return the sum of the differences of all numbers in two offsets; NaN if there are none, or other values.

    A key that only the later offset has, such as a new partition, started at zero.
    """
    if isinstance(later, dict) and isinstance(earlier, dict) and depth:
        if not later or earlier.keys() - later.keys():
            return math.nan
        return sum(difference(part, earlier.get(key, _nothing(part)), depth - 1) for key, part in later.items())
    if _is_number(later) and _is_number(earlier):
        return max(0.0, float(later - earlier))  # integers are subtracted exactly, also where floats would not be
    return math.nan


def _nothing(part: Any) -> Any:
    return {} if isinstance(part, dict) else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _count(value: Any) -> int:
    """Return a number of rows or milliseconds; 0 for -1, by which Spark means unknown."""
    if not _is_number(value):
        raise ValueError(f"{value!r} is not a number of rows or milliseconds")
    return max(0, int(value))


def _offset(value: Any) -> Any:
    """Return an offset, which a report contains as JSON or, quoted, as text."""
    if not isinstance(value, str):
        return value
    with suppress(EngineError):
        return decoded(value)
    return None
