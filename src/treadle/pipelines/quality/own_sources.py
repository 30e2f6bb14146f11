"""How fast rows come to a source of the user's own (`@p.source`), by what Spark reports of the query that reads it.

What was read counts as what came only where the source had no more: a query that drops rows reads faster, and would be
held to need to drop still more. A source that does not report how far it could have been read (files do not) has an
unknown lag. It knows counters and reports; what follows from them is the business of `promises`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from treadle.engines.spark.queries.progress import NOT_ROWS, Progress, difference

REPORTS = 4
"""So many are looked back: rows come in batches, and few of these say little about a rate."""
OURS = "treadle."
"""How the embedded channel describes itself; what waits there is counted elsewhere."""


class _Point(NamedTuple):
    """Rows read until a report of a batch, and where that batch ended."""

    time: float
    rows: float
    ends: Mapping[str, Any]
    latest: Mapping[str, Any]


class OwnSource:
    """As one query reads it. `rate` is the rows a second that come, NaN before two batches were reported."""

    def __init__(self) -> None:
        self.rate = math.nan
        self.lag_known: bool | None = None
        """Whether the source reports how far it could have been read; None before the first report."""
        self._batch = -1
        self._points: deque[_Point] = deque(maxlen=REPORTS)
        self._lag = 0.0

    def update(self, now: float, rows: float, report: Progress | None) -> None:
        """The rows that were read so far, before any was dropped, and the last report of the query."""
        if report is not None and report.batch != self._batch and report.rows:
            ends = _foreign(report.ends)
            if report.batch < self._batch or (self._points and rows < self._points[-1].rows):
                self._points.clear()  # another run
            self._batch = report.batch
            self._points.append(_Point(now, rows, ends, _foreign(report.latest)))
            self._lag = _lag(self._points[-1])
            self.lag_known = not math.isnan(self._lag)
        if len(self._points) < 2 or not self.lag_known:
            self.rate = math.nan
            return
        first, last = self._points[0], self._points[-1]
        silent = now - last.time
        passed = last.time - first.time
        if silent > passed:  # more than the time of some batches: nothing comes any more
            passed += silent
        self.rate = max(0.0, last.rows - first.rows) / passed * _growth(first, last)

    def waiting(self, reading_for: float) -> float:
        """Rows that the source has, if the batch that is running was planned so many seconds ago."""
        if math.isnan(self.rate):
            return 0.0
        first, last = self._points[0], self._points[-1]
        offsets = _difference(last.ends, first.ends)
        left = self._lag * (last.rows - first.rows) / offsets if self._lag and offsets > 0.0 else 0.0
        return left + self.rate * reading_for


def _foreign(offsets: Mapping[str, Any]) -> dict[str, Any]:
    return {name: offset for name, offset in offsets.items() if not name.startswith(OURS)}


def _lag(point: _Point) -> float:
    """Offsets that were there and not read: 0 where a source was read to its end; NaN if that can't be seen."""
    total = 0.0
    for name, end in point.ends.items():
        latest = point.latest.get(name)
        if end is None or latest is None:
            return math.nan
        if latest != end:
            total += math.nan if name.startswith(NOT_ROWS) else difference(latest, end)
    return total


def _growth(first: _Point, last: _Point) -> float:
    """Offsets that came by those that were read meanwhile; 1 where all that came was read at each end."""
    if _lag(first) == _lag(last) == 0.0:
        return 1.0
    came, read = _difference(last.latest, first.latest), _difference(last.ends, first.ends)
    return came / read if read > 0.0 and not math.isnan(came) else 1.0


def _difference(later: Mapping[str, Any], earlier: Mapping[str, Any]) -> float:
    return sum(difference(offset, earlier.get(name)) for name, offset in later.items())
