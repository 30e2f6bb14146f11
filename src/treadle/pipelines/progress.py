"""What Spark says of a streaming query's last batch: how many rows it took, and how many its sources still had.

It reads the progress report and offsets, both JSON. What waits is the difference of two offsets, where those count
rows, as Kafka's do.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

NOT_ROWS = ("RateStream", "RatePerMicroBatch", "FileStream", "MemoryStream")
"""How sources describe themselves whose offsets are seconds, files or batches."""


@dataclass(frozen=True)
class Progress:
    """One batch. `ends` and `latest` are the offsets by source: how far it read, and how far it could have."""

    run: str
    batch: int
    began: float
    """When Spark looked for new rows, in seconds since 1970."""
    rows: int
    ends: Mapping[str, Any]
    latest: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> Progress:
        report = json.loads(text)
        sources = {source["description"]: source for source in report["sources"]}
        return cls(
            report["runId"],
            report["batchId"],
            datetime.fromisoformat(report["timestamp"]).timestamp(),
            report["numInputRows"],
            {name: _offset(source.get("endOffset")) for name, source in sources.items()},
            {name: _offset(source.get("latestOffset")) for name, source in sources.items()},
        )

    @property
    def counts_rows(self) -> bool:
        """Whether the offsets of all its sources tell rows."""
        return not math.isnan(self.behind(self.latest))

    def behind(self, latest: Mapping[str, Any]) -> float:
        """The rows between the end of this batch and these offsets; NaN where a source does not tell."""
        if not self.ends:
            return math.nan
        return sum(
            math.nan if name.startswith(NOT_ROWS) else difference(latest.get(name), end)
            for name, end in self.ends.items()
        )


class Arrivals:
    """When rows came, from the number that had come in all at some moments; between two they came evenly."""

    def __init__(self, keep: int = 1000) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=keep)

    def note(self, at: float, count: float) -> None:
        """So many had come by then. What is unknown, or not newer than what is known, is left out."""
        if not math.isnan(count) and (not self._seen or at > self._seen[-1][0]):
            self._seen.append((at, count))

    def came(self, row: float) -> float:
        """When the row came that has so many before it; asked for ever later rows. NaN if nothing was ever seen.

        One that was there when the first look was taken counts from that look.
        """
        while len(self._seen) > 1 and self._seen[1][1] <= row:
            self._seen.popleft()
        if not self._seen:
            return math.nan
        start, before = self._seen[0]
        if row <= before or len(self._seen) == 1:
            return start
        end, after = self._seen[1]
        return start + (end - start) * (row - before) / (after - before)

    @property
    def latest(self) -> float:
        """When somebody last looked."""
        return self._seen[-1][0] if self._seen else math.nan


def difference(later: Any, earlier: Any) -> float:
    """The sum over all numbers of two offsets of one shape; NaN if they have none or hold anything but numbers.

    A part that only the later one has, as a partition that was added, began at zero.
    """
    if isinstance(later, dict) and isinstance(earlier, dict):
        if not later or earlier.keys() - later.keys():
            return math.nan
        return sum(difference(part, earlier.get(key, _nothing(part))) for key, part in later.items())
    if _is_number(later) and _is_number(earlier):
        return max(0.0, float(later - earlier))
    return math.nan


def _nothing(part: Any) -> Any:
    return {} if isinstance(part, dict) else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _offset(value: Any) -> Any:
    """An offset stands in the report as JSON or, where that is quoted, as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None
