"""Measures the arrival rate of a user-defined source (`@p.source`) from progress reports of the query that reads it.

Rows read count as rows arrived only if the query has read the source to its end. While a query works off a backlog, it
reads faster if it drops rows, and would then seem to need still more drops; so the latest offsets show how many rows
arrived. A source that does not report its latest offset, such as files, has an unknown lag and no rate. `promises`
decides how much to drop.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from treadle.engines.spark.queries.progress import NOT_ROWS, Progress, difference

REPORTS = 4
"""Number of reports, one for each batch, from which a rate is computed; fewer would not give a steady rate."""
OURS = "treadle."
"""Sources whose names in progress reports begin with this are embedded channels, which count their own backlog."""


class _Point(NamedTuple):
    """A progress report: its time, all rows read so far, and by source the batch's end offset and the latest offset."""

    time: float
    rows: float
    ends: Mapping[str, Any]
    latest: Mapping[str, Any]


class OwnSource:
    """A user-defined source as one query reads it. `rate` is the number of rows that arrive per second.

    `rate` is NaN before two batches were reported, and where the lag is unknown.
    """

    def __init__(self) -> None:
        self.rate = math.nan
        self.lag_known: bool | None = None
        """Whether reports give the source's latest offset in rows; None before the first report."""
        self._batch = -1
        self._points: deque[_Point] = deque(maxlen=REPORTS)
        self._lag = 0.0

    def update(self, now: float, rows: float, report: Progress | None) -> None:
        """Update `rate` from all rows that the query has read so far, dropped ones included, and its last report."""
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
        if silent > passed:  # no report for longer than the last batches took: no rows arrive any more
            passed += silent
        self.rate = max(0.0, last.rows - first.rows) / passed * _growth(first, last)

    def waiting(self, reading_for: float) -> float:
        """Estimate the source's backlog in rows, if the running batch was planned `reading_for` seconds ago.

        It is what the last batch left unread, and arrivals since the running one was planned; 0 while unknown.
        """
        if math.isnan(self.rate):
            return 0.0
        first, last = self._points[0], self._points[-1]
        offsets = _difference(last.ends, first.ends)
        left = self._lag * (last.rows - first.rows) / offsets if self._lag and offsets > 0.0 else 0.0
        return left + self.rate * reading_for


def _foreign(offsets: Mapping[str, Any]) -> dict[str, Any]:
    return {name: offset for name, offset in offsets.items() if not name.startswith(OURS)}


def _lag(point: _Point) -> float:
    """How many available offsets were not read: 0 if the source was read to its end, NaN if reports don't say it."""
    total = 0.0
    for name, end in point.ends.items():
        latest = point.latest.get(name)
        if end is None or latest is None:
            return math.nan
        if latest != end:
            total += math.nan if name.startswith(NOT_ROWS) else difference(latest, end)
    return total


def _growth(first: _Point, last: _Point) -> float:
    """Offsets that arrived between two reports, divided by offsets read; 1 if the source was read to its end at both.

    It is also 1 if no offsets were read or the number of arrived offsets is unknown.
    """
    if _lag(first) == _lag(last) == 0.0:
        return 1.0
    came, read = _difference(last.latest, first.latest), _difference(last.ends, first.ends)
    return came / read if read > 0.0 and not math.isnan(came) else 1.0


def _difference(later: Mapping[str, Any], earlier: Mapping[str, Any]) -> float:
    return sum(difference(offset, earlier.get(name)) for name, offset in later.items())
