"""The visible segments of an embedded channel and the backlog from a row number on, known from file names alone.

Made for a control loop that polls many channels many times a second: what has not changed is not read again.
"""

from __future__ import annotations

import math
import os
import threading
import time
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from treadle.linux.files.inotify import MOVED_IN, Watch
from treadle.linux.files.inotify import watch as start_watch
from treadle.pipelines.channels.segment import SUFFIX, Segment, parse, visible

Folder = str | os.PathLike[str]


class Backlog(NamedTuple):
    """What a consumer has not read yet: rows, bytes, and the rows' `oldest` and `mean` arrival time in epoch seconds.

    The arrival times are NaN if there are no rows.
    """

    rows: int
    bytes: int
    oldest: float
    mean: float


class View:
    """The visible segments of a channel, for frequent polling.

    Several threads may use it. A folder that does not exist yet is an empty channel. With `watch`, inotify reports
    changes until `close`; otherwise the folder's mtime shows them.
    """

    def __init__(self, folder: Folder, *, watch: bool = False) -> None:
        self.folder = Path(folder)
        self.segments: list[Segment] = []
        self.hidden: list[Segment] = []
        """Segments behind a gap or overlapping: left by an interrupted writer, or in the middle of being renamed."""
        self._path = os.fspath(folder)
        self._lock = threading.RLock()
        self._stamp: tuple[int, int] | None = None
        self._watches = watch
        self._watch: Watch | None = None
        self._known: dict[str, Segment] = {}
        # Sums up to the end of each segment, from an arbitrary beginning, so that an append only appends.
        self._ends: list[int] = []
        self._bytes: list[int] = []
        self._arrivals: list[float] = []
        self._base = 0.0
        """Arrival times are summed up relative to this time: sums of epoch seconds would lose the microseconds."""
        self.refresh()

    @property
    def start(self) -> int:
        return self.segments[0].first if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0

    @property
    def epoch(self) -> int:
        """The last epoch committed, -1 before the first."""
        return self.segments[-1].epoch if self.segments else -1

    def refresh(self) -> bool:
        """Polls the folder; true if what is visible has changed."""
        with self._lock:
            if self._watch is not None and not self._watch.ended:
                events = self._watch.take()
                if events is not None:
                    return bool(events) and self._follow(events)
                if not self._watch.ended:
                    return self.rescan()
            return self._look()

    def close(self) -> None:
        """Stop watching the folder."""
        with self._lock:  # another thread may be polling
            if self._watch is not None:
                self._watch.close()
                self._watch, self._watches = None, False

    def _look(self) -> bool:
        """Poll by the folder's mtime, and begin to watch with inotify if that is wanted."""
        now = time.time_ns()
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._stamp = None
            return self._show({}, [], [])
        if self._watches and (self._watch is None or self._watch.ended):
            self._watch = start_watch(self._path)
            if self._watch is not None:
                return self.rescan()
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return False
        changed = self.rescan()
        # Within one tick of the file system's clock a second change has the same mtime: only an old mtime is trusted.
        self._stamp = stamp if now - found.st_mtime_ns > _TICK_NS else None
        return changed

    def _follow(self, events: list[tuple[int, str]]) -> bool:
        """Apply events of inotify: usually new segments at the end. After any other event the folder is listed."""
        segments = [name for _, name in events if name.endswith(SUFFIX) and not name.startswith(".")]
        if not segments:
            return False
        if self.hidden or not self.segments or any(kind != MOVED_IN for kind, name in events if name in segments):
            return self.rescan()
        found = self._parsed(segments)
        last = next(reversed(self._known))
        run, hidden = visible([self.segments[-1], *(found[name] for name in sorted(found))])
        if hidden or (found and min(found) <= last):
            return self.rescan()
        self._known.update(sorted(found.items()))
        return self._show(self._known, self.segments + run[1:], [])

    def rescan(self) -> bool:
        """List the folder, even if its mtime has not changed."""
        with self._lock:
            while True:
                known, appended = self._listed()
                if appended is not None:
                    more, hidden = visible([*self.segments[-1:], *appended])
                    run = self.segments + more[1:]
                else:
                    run, hidden = visible(list(known.values()))
                # Deletion is oldest first. So a gap is real only if the segment before it is still there:
                # otherwise segments were deleted while the folder was being listed.
                if not hidden or os.path.exists(self.folder / run[-1].name):
                    return self._show(known, run, hidden)

    def backlog(self, position: int) -> Backlog:
        """The backlog from row `position` on. Bytes of a partly read segment count in proportion to its unread rows."""
        with self._lock:
            index = bisect_right(self._ends, position)
            if index == len(self.segments):
                return _NOTHING
            part = self.segments[index]
            left = min(part.rows, part.end - position)
            rows = self._ends[-1] - part.end + left
            weight = part.bytes * left // part.rows + self._bytes[-1] - self._bytes[index]
            arrivals = (part.mean - self._base) * left + self._arrivals[-1] - self._arrivals[index]
            oldest = min([segment.oldest for segment in self.segments[index:]])
            return Backlog(rows, weight, oldest, self._base + arrivals / rows)

    def _listed(self) -> tuple[dict[str, Segment], list[Segment] | None]:
        """List the folder: return all segments, sorted by name, and the new ones if there are only new ones at the end.

        The second result is None after any other change. The size of known files is not read again.
        """
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            return {}, None
        known = self._known
        fresh = [name for name in names if name not in known and name.endswith(SUFFIX)]
        found = self._parsed(fresh)
        gone = known.keys() - set(names)
        if self.segments and not gone and not self.hidden and (not found or next(iter(found)) > next(reversed(known))):
            known.update(found)
            return known, list(found.values())
        left = {name: segment for name, segment in known.items() if name not in gone}
        return dict(sorted({**left, **found}.items())), None

    def _parsed(self, names: list[str]) -> dict[str, Segment]:
        found: dict[str, Segment] = {}
        for name in sorted(names):
            with suppress(FileNotFoundError):
                segment = parse(name, os.stat(os.path.join(self._path, name)).st_size)
                if segment is not None:
                    found[name] = segment
        return found

    def _show(self, known: dict[str, Segment], run: list[Segment], hidden: list[Segment]) -> bool:
        self._known, self.hidden = known, hidden
        before = self.segments
        if run == before:
            return False
        self.segments = run
        self._sum_up(len(before) if run[: len(before)] == before else 0)
        return True

    def _sum_up(self, kept: int) -> None:
        """Update the sums from segment `kept` on; the sums of the segments before it stay."""
        if not kept:
            self._ends, self._bytes, self._arrivals = [], [], []
            self._base = self.segments[0].mean if self.segments else 0.0
        weight, arrivals = (self._bytes[-1], self._arrivals[-1]) if self._ends else (0, 0.0)
        for segment in self.segments[kept:]:
            weight += segment.bytes
            arrivals += (segment.mean - self._base) * segment.rows
            self._ends.append(segment.end)
            self._bytes.append(weight)
            self._arrivals.append(arrivals)


_NOTHING = Backlog(0, 0, math.nan, math.nan)
_TICK_NS = 20_000_000
"""Nanoseconds after which a folder's mtime is trusted: longer than a tick of any kernel's clock (10 ms at most)."""
