"""Traffic that the tests of Linear Road share."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.workloads.linear_road import rules
from treadle.workloads.linear_road.records import SEGMENT_FEET
from treadle.workloads.linear_road.reference import Notification

JAM = 7
"""The expressway of `jam`."""


def line(
    time: int, vid: int, seg: int, feet: int = 0, *, speed: int = 30, xway: int = 0, lane: int = 1, to: int = 0
) -> str:
    """A position report, `feet` from the western end of its segment; `to` is the direction."""
    place = seg * SEGMENT_FEET + feet
    return f"0,{time},{vid},{speed},{xway},{lane},{to},{seg},{place},-1,-1,-1,-1,-1,-1"


def jam() -> list[str]:
    """A traffic jam with an accident on the way east, from minute 31 to the beginning of minute 34.

    53 vehicles creep through segment 11, which three others enter: 200 in minute 32, 201 in minute 33, 202 in minute
    34. Two vehicles stand at one place in segment 14: since their fourth report, in minute 32, that is an accident. In
    minute 33 one of them drives on.
    """
    found = []
    for time in range(1800, 1980, 30):
        found += [line(time, vid, 11, 10 * (time // 30 % 8) + vid, speed=5, xway=JAM) for vid in range(53)]
        moved = 50 if time == 1950 else 0
        found += [line(time, 100, 14, 700 + moved, speed=0, xway=JAM), line(time, 101, 14, 700, speed=0, xway=JAM)]
        for vid, enters in ((200, 1865), (201, 1925), (202, 1985)):
            later = time + 5
            if later >= enters - 30:
                found.append(line(later, vid, 10 + (later >= enters), later, speed=6, xway=JAM))
    return [*found, line(1985, 202, 11, 1985, speed=6, xway=JAM)]


def in_order(rows: Iterable[Notification]) -> list[Notification]:
    """Rows in the order of the reference."""
    return sorted(rows, key=lambda row: (row.id, rules.KINDS.index(row.kind), row.seg or 0))
