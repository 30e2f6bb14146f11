"""What is visible of an embedded channel, and how much of it lies behind a row number. It reads names only, no rows.

Made for a control loop that looks at many channels many times a second: what has not changed is not looked at again.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from treadle.pipelines.channels.segment import SUFFIX, Segment, parse, visible

Folder = str | os.PathLike[str]


class Backlog(NamedTuple):
    """What a consumer has not read yet. The arrival times are NaN where there is nothing."""

    rows: int
    bytes: int
    oldest: float
    mean: float


class View:
    """The visible segments of a channel, for somebody who looks again and again: quiet channels cost one `stat`.

    A folder that is not there yet is an empty channel.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = Path(folder)
        self.segments: list[Segment] = []
        self.hidden: list[Segment] = []
        """Behind a gap or overlapping: left by an interrupted writer, or in the middle of being renamed."""
        self._path = os.fspath(folder)
        self._stamp: tuple[int, int] | None = None
        self._known: dict[str, Segment] = {}
        self._ends: list[int] = []
        self._behind: list[Backlog] | None = None
        self.refresh()

    @property
    def start(self) -> int:
        return self.segments[0].first if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0

    @property
    def epoch(self) -> int:
        """The last one committed, -1 before the first."""
        return self.segments[-1].epoch if self.segments else -1

    def refresh(self) -> bool:
        """Looks again; true if what is visible has changed."""
        now = time.time_ns()
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._stamp = None
            return self._show({}, [], [])
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return False
        changed = self.rescan()
        # Within one tick of the file system's clock a second change leaves the same mtime: only an old one is trusted.
        self._stamp = stamp if now - found.st_mtime_ns > _TICK_NS else None
        return changed

    def rescan(self) -> bool:
        """Looks into the folder whatever its mtime says."""
        while True:
            known = self._listed()
            run, hidden = visible(list(known.values()))
            # Deletion is oldest first. So a gap is one only if the segment before it is still there: otherwise others
            # were deleted while the folder was being listed.
            if not hidden or os.path.exists(self.folder / run[-1].name):
                return self._show(known, run, hidden)

    def backlog(self, position: int) -> Backlog:
        """What lies behind that row number. Of a segment read in part, bytes count by rows."""
        if self._behind is None:
            self._ends = [segment.end for segment in self.segments]
            single = (Backlog(s.rows, s.bytes, s.oldest, s.mean) for s in reversed(self.segments))
            self._behind = list(itertools.accumulate(single, _both, initial=_NOTHING))[::-1]
        index = bisect_right(self._ends, position)
        if index == len(self.segments):
            return _NOTHING
        part = self.segments[index]
        left = min(part.rows, part.end - position)
        return _both(self._behind[index + 1], Backlog(left, part.bytes * left // part.rows, part.oldest, part.mean))

    def _listed(self) -> dict[str, Segment]:
        listed: dict[str, Segment] = {}
        try:
            names = sorted(os.listdir(self._path))
        except FileNotFoundError:
            return {}
        for name in names:
            segment = self._known.get(name)
            if segment is None and name.endswith(SUFFIX):
                with suppress(FileNotFoundError):
                    segment = parse(name, os.stat(os.path.join(self._path, name)).st_size)
            if segment is not None:
                listed[name] = segment
        return listed

    def _show(self, known: dict[str, Segment], run: list[Segment], hidden: list[Segment]) -> bool:
        self._known, self.hidden = known, hidden
        if run == self.segments:
            return False
        self.segments, self._behind = run, None
        return True


def _both(one: Backlog, other: Backlog) -> Backlog:
    """Two backlogs as one. The mean is kept as a mean, not as a sum, which would lose the microseconds."""
    if not one.rows or not other.rows:
        return one if one.rows else other
    rows = one.rows + other.rows
    mean = one.mean + (other.mean - one.mean) * (other.rows / rows)
    return Backlog(rows, one.bytes + other.bytes, min(one.oldest, other.oldest), mean)


_NOTHING = Backlog(0, 0, math.nan, math.nan)
_TICK_NS = 20_000_000
"""Longer than a tick of any kernel's clock (10 ms at most)."""
