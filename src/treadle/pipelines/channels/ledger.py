"""The ledger of a Kafka topic's offsets: which rows count, when they arrived, and which batch wrote them.

A part is a range of offsets; parts follow each other without gaps. They are kept in a file that survives kill -9, a
full disk and a loss of power. This module talks to no broker; the topic is read and written by `kafka`.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from treadle.errors import EngineError
from treadle.pipelines.channels.view import Backlog

Offsets = Mapping[int, int]
"""Partition -> offset."""
MOST_PARTS = 1000
"""If there are more parts than this in memory, neighbouring parts are joined."""


class ArrivalStats(NamedTuple):
    """Rows that arrived together: how many, and the oldest and mean arrival in microseconds."""

    rows: int
    oldest: int
    mean: int


@dataclass(frozen=True)
class Part:
    """A range of offsets in each partition, written by a batch or by several. `batch` is the number of the last one.

    If `void`, a failed attempt has written these rows, and no reader may see them. `oldest` and `mean` are arrival
    times in microseconds.
    """

    spans: Mapping[int, tuple[int, int]]
    oldest: int = 0
    mean: int = 0
    bytes: int = 0
    batch: int = -1
    void: bool = False

    @property
    def rows(self) -> int:
        return 0 if self.void else sum(end - start for start, end in self.spans.values())

    @property
    def ends(self) -> dict[int, int]:
        return {partition: end for partition, (_, end) in self.spans.items()}

    def within(self, start: Offsets, end: Offsets | None = None) -> int:
        """How many offsets of this part are from `start` up to `end`, or from `start` on if `end` is None.

        A partition that is missing in `start` or `end` has the offset 0 there.
        """
        count = 0
        for partition, (first, last) in self.spans.items():
            stop = last if end is None else min(last, end.get(partition, 0))
            count += max(0, stop - max(first, start.get(partition, 0)))
        return count

    def passed(self, position: Offsets) -> bool:
        return not self.within(position)


@dataclass
class Parts:
    """Parts in the order in which they were added. They give the backlog of a reader at any position."""

    found: list[Part] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    version: int = 0

    def add(self, part: Part) -> None:
        self.found.append(part)
        self.ends.update(part.ends)
        self.version += 1
        if len(self.found) > MOST_PARTS:
            self.found = thinned(self.found)

    def forget(self, position: Offsets) -> None:
        """Remove parts before this position, except the last part."""
        if len(self.found) > 1 and self.found[0].passed(position):
            self.found = [part for part in self.found[:-1] if not part.passed(position)] + self.found[-1:]
            self.version += 1

    def voids(self, position: Offsets) -> list[Part]:
        return [part for part in self.found if part.void and not part.passed(position)]

    def ages(self, start: Offsets, end: Offsets | None = None) -> list[ArrivalStats]:
        """Row counts and arrival times between two positions, part by part, without void parts."""
        counted = ((part.within(start, end), part) for part in self.found if not part.void)
        return [ArrivalStats(rows, part.oldest, part.mean) for rows, part in counted if rows]

    def backlog(self, position: Offsets) -> Backlog:
        rows, size, oldest, summed = 0, 0.0, math.inf, 0.0
        for part in self.found:
            mine = 0 if part.void else part.within(position)
            if mine:
                rows += mine
                size += part.bytes * mine / part.rows
                oldest = min(oldest, part.oldest)
                summed += part.mean * mine
        if not rows:
            return Backlog(0, 0, math.nan, math.nan)
        return Backlog(rows, round(size), oldest / 1e6, summed / rows / 1e6)


class Ledger:
    """The parts of a channel, in a file with one line for each. A part counts only once its line is on the disk.

    A line that was written incompletely, because of a crash or a full disk, never counted. It is skipped, provided that
    the offsets of the next line follow those of the last complete line.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.parts = Parts()
        self.batch = -1
        """The number of the last batch recorded."""
        self._lines = 0
        self._size = 0
        """Bytes of whole lines in the file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._load()

    def record(self, part: Part) -> None:
        """Add a part; when this returns, the part is recorded even after a loss of power."""
        try:
            self._append(line(part))
        except OSError as error:
            raise EngineError(
                f"can't be written: {error.strerror or error}",
                where=str(self.file),
                remedy="make room on that disk; the hop then goes on",
            ) from error
        self._note(part)

    def prune(self, position: Offsets) -> None:
        """Forget the parts before `position`, which all readers have reached. If the file is long, shorten it."""
        self.parts.forget(position)
        if self._lines > 2 * len(self.parts.found) + 100:
            kept = self.parts.found
            if kept and kept[-1].batch < self.batch:
                kept = [*kept[:-1], replace(kept[-1], batch=self.batch)]
            with suppress(OSError):  # no room: the longer file says the same, and this is tried again
                self._rewrite(kept)

    def _append(self, text: bytes) -> None:
        """Add a line by one write. If that fails, this or the next call cuts the file back to its whole lines."""
        new = not self._size
        file = os.open(self.file, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            found = os.fstat(file).st_size
            if found < self._size:
                raise EngineError(
                    f"is shorter than what was written to it: {found} of {self._size} bytes",
                    where=str(self.file),
                    remedy="put it back from a copy, and leave it alone while the pipeline runs",
                )
            if found > self._size:
                os.ftruncate(file, self._size)
            if os.pwrite(file, text, self._size) < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
            if new:
                for folder in self.file.absolute().parents:
                    _sync(folder)
        except OSError:
            with suppress(OSError):
                os.ftruncate(file, self._size)
            raise
        finally:
            os.close(file)
        self._size += len(text)

    def _rewrite(self, parts: Sequence[Part]) -> None:
        text = b"".join(line(part) for part in parts)
        fresh = self.file.with_suffix(".new")
        try:
            with fresh.open("wb") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            fresh.replace(self.file)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        self._size, self._lines = len(text), len(parts)
        _sync(self.file.parent)

    def _note(self, part: Part) -> None:
        self.parts.add(part)
        self.batch = max(self.batch, part.batch)
        self._lines += 1

    def _load(self) -> None:
        try:
            text = self.file.read_bytes()
        except FileNotFoundError:
            return
        self._size = text.rfind(b"\n") + 1
        torn = False
        for number, each in enumerate(text[: self._size].split(b"\n")[:-1], 1):
            try:
                part, before = _parsed(each)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise self._damaged(f"line {number}: {error!r}") from error
            torn = torn or before
            if part is None:
                continue
            if torn and any(start != self.parts.ends.get(each, 0) for each, (start, _) in part.spans.items()):
                raise self._damaged(f"line {number} does not follow the last whole line before it")
            torn = False
            self._note(part)

    def _damaged(self, what: str) -> EngineError:
        return EngineError(
            f"is damaged: {what}",
            where=str(self.file),
            remedy="put it back from a copy; to start from nothing, delete the pipeline's folder",
        )


def line(part: Part) -> bytes:
    """A part as a line of the ledger."""
    return (json.dumps(_as_json(part)) + "\n").encode()


def _parsed(text: bytes) -> tuple[Part | None, bool]:
    """Parse a line: return its part, or None if the line is incomplete; and whether it has text of a failed write.

    Such text may also stand before a complete line. No prefix and no suffix of a line is valid JSON, so JSON that is
    not a part is damage of another kind, and raises.
    """
    begin = max(0, text.rfind(b'{"spans"'))
    try:
        found = json.loads(text[begin:])
    except ValueError:
        return None, True
    return _from_json(found), begin > 0


def _sync(folder: Path) -> None:
    """Sync the names in a folder to disk. A folder that we may not read is left out: it was not made by us."""
    with suppress(PermissionError):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def thinned(parts: Sequence[Part]) -> list[Part]:
    """Join neighbours in pairs, if both are void or neither is. At best half as many parts are left."""
    made: list[Part] = []
    paired = True
    for part in parts:
        paired = not paired and made[-1].void == part.void
        if paired:
            made[-1] = joined(made[-1], part)
        else:
            made.append(part)
    return made


def joined(one: Part, other: Part) -> Part:
    """Join two parts that follow each other."""
    spans = dict(one.spans)
    for partition, (start, end) in other.spans.items():
        spans[partition] = (spans[partition][0], end) if partition in spans else (start, end)
    rows = one.rows + other.rows
    mean = round((one.mean * one.rows + other.mean * other.rows) / rows) if rows else 0
    ages = [part.oldest for part in (one, other) if part.rows]
    size = one.bytes + other.bytes
    return Part(spans, min(ages, default=0), mean, size, max(one.batch, other.batch), one.void)


def least(positions: Iterable[Offsets]) -> dict[int, int]:
    """By partition: the lowest offset in the positions of several readers."""
    found: dict[int, int] = {}
    for number, position in enumerate(positions):
        for partition in found.keys() | position.keys():
            mine = position.get(partition, 0)
            found[partition] = min(found.get(partition, 0), mine) if number else mine
    return found


def _as_json(part: Part) -> dict[str, Any]:
    spans = {str(partition): list(span) for partition, span in part.spans.items()}
    known: dict[str, Any] = {"spans": spans, "batch": part.batch}
    if part.void:
        return {**known, "void": True}
    return {**known, "oldest": part.oldest, "mean": part.mean, "bytes": part.bytes}


def _from_json(line: dict[str, Any]) -> Part:
    spans = {int(partition): (int(start), int(end)) for partition, (start, end) in line["spans"].items()}
    oldest, mean, size = (int(line.get(name, 0)) for name in ("oldest", "mean", "bytes"))
    return Part(spans, oldest, mean, size, int(line["batch"]), bool(line.get("void", False)))
