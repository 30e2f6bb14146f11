"""The operator of Linear Road that decides tolls, as a function of its memory and of new rows; its key is (xway, dir).

It reads position reports, LAVs and counts. Tables have the id of the report that ends their minute, and each row says
how many rows belong to its table. So it is known when tables are complete, although the three inputs may come at
different speeds: reports of a minute wait until the tables of the minute before are there. What waits is kept in the
memory; channels between hops limit how many rows that can be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.workloads.linear_road import rules
from treadle.workloads.linear_road.arrays import (
    COUNT,
    LAV,
    NOTICE,
    REPORT,
    Clock,
    Key,
    Kind,
    Rows,
    by_minutes,
    changes,
    clock_of,
    columns,
    filled,
    in_order,
    none,
)

LAS, CV, POS = (1 + rules.KINDS.index(kind) for kind in (rules.LAS, rules.CV, rules.POS))
"""Kinds of notifications as numbers."""
VEHICLE: Kind = np.dtype(
    [("vid", "i4"), ("seg", "i4"), ("lane", "i4"), ("pos", "i4"), ("minute", "i4"), ("same", "i4")]
)
"""The last report of a vehicle, and how many consecutive reports had its position."""
SEGMENT: Kind = np.dtype("i4")


@dataclass
class Direction:
    """What is known of one direction of an expressway."""

    clock: Clock | None = None
    vehicles: Rows = field(default_factory=lambda: none(VEHICLE))
    lavs: Rows = field(default_factory=lambda: none(LAV))
    counts: Rows = field(default_factory=lambda: none(COUNT))
    free: Rows = field(default_factory=lambda: none(SEGMENT))
    """Segments that were near an accident at the end of the minute before."""
    waiting: tuple[Rows, Rows, Rows] = field(default_factory=lambda: (none(REPORT), none(LAV), none(COUNT)))
    """Reports whose tables are not complete yet, and LAVs and counts whose reports have not come yet."""

    def begin(self, ended: int, minute: int, lavs: Rows, counts: Rows, *, east: bool) -> None:
        """Begin a minute. If it does not follow the one that has ended, nothing of before counts."""
        follows = minute == ended + 1
        self.vehicles = self.vehicles[self.vehicles["minute"] == ended] if follows else none(VEHICLE)
        self.lavs, self.counts = (lavs, counts) if follows else (none(LAV), none(COUNT))
        self.free = free_segments(self.vehicles, east=east)

    def notify(self, reports: Rows) -> Rows:
        """Follow the vehicles that have sent these reports of one minute, and notify those that enter a segment."""
        entered, self.vehicles = follow(self.vehicles, reports)
        self.clock = clock_of(reports)
        seg = reports["seg"][entered]
        lav, count = look_up(self.lavs, "lav", seg, np.nan), look_up(self.counts, "count", seg, -1)
        due = (lav < rules.SLOW) & (count > rules.FREE_VEHICLES) & ~np.isin(seg, self.free)
        toll = np.where(due, 2 * (count.astype("i8") - rules.FREE_VEHICLES) ** 2, 0)
        given = columns(reports[entered], *(REPORT.names or ()))
        return filled(NOTICE, len(seg), **given, kind=POS, lav=lav, count=count, toll=toll)


def toll_notification_pos(
    key: Key, memory: Direction | None, reports: Rows, lavs: Rows, counts: Rows
) -> tuple[Rows, Any]:
    """Give LAVs and counts as they enter the tables, and the toll of each vehicle that enters a segment."""
    direction = memory or Direction()
    waiting = [in_order(*parts) for parts in zip(direction.waiting, (reports, lavs, counts), strict=True)]
    found, done = [none(NOTICE)], -1
    for part, ended in by_minutes(waiting[0], direction.clock):
        if ended is not None:
            tables = [rows[rows["id"] == part["id"][0]] for rows in waiting[1:]]
            if not all(len(rows) and len(rows) == rows["closing"][0] for rows in tables):
                break
            tables = [rows[np.argsort(rows["seg"])] for rows in tables]
            direction.begin(ended, part["minute"][0], *tables, east=key[1] == rules.EAST)
            found += [_notices(rows, kind) for rows, kind in zip(tables, (LAS, CV), strict=True)]
        found.append(direction.notify(part))
        done = int(part["id"][-1])
    later = [rows[rows["id"] > done] for rows in waiting]
    direction.waiting = later[0], later[1], later[2]
    return np.concatenate(found), direction


def _notices(rows: Rows, kind: int) -> Rows:
    """The notifications of rows of a table."""
    names = set(rows.dtype.names or ()) & set(NOTICE.names or ())
    return filled(NOTICE, len(rows), **columns(rows, *names), kind=kind)


def look_up(table: Rows, name: str, segments: NDArray[Any], missing: float) -> NDArray[Any]:
    """A value of each segment, or `missing`. The table is sorted by segments."""
    if not len(table):
        return np.full(len(segments), missing)
    at = np.searchsorted(table["seg"], segments).clip(max=len(table) - 1)
    return np.where(table["seg"][at] == segments, table[name][at], missing)


def follow(vehicles: Rows, reports: Rows) -> tuple[NDArray[np.int64], Rows]:
    """The positions of reports whose vehicles enter a segment, in their order; and where all vehicles are now."""
    new = filled(VEHICLE, len(reports), **columns(reports, "vid", "seg", "lane", "pos", "minute"), same=1)
    rows = np.concatenate([vehicles, new])
    order = np.argsort(rows["vid"], kind="stable")
    rows = rows[order]
    left = rows["lane"] == rules.EXIT_LANE
    unknown = changes(rows["vid"])
    last = np.append(unknown[1:], True)
    unknown[1:] |= left[:-1]
    begins = unknown | changes(rows["lane"], rows["pos"])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
    rows["same"] = rows["same"][first] + np.arange(len(rows)) - first
    entered = (unknown | changes(rows["seg"])) & ~left & (order >= len(vehicles))
    return np.sort(order[entered] - len(vehicles)), rows[last & ~left]


def free_segments(vehicles: Rows, *, east: bool) -> Rows:
    """Segments from which an accident (two stopped vehicles at one position) is at most 4 segments downstream."""
    stopped = vehicles[vehicles["same"] >= rules.STOPPED_AFTER]
    stopped = stopped[np.lexsort((stopped["pos"], stopped["lane"]))]
    again = ~changes(stopped["lane"], stopped["pos"])
    distance = np.arange(rules.DOWNSTREAM + 1)
    return np.unique(stopped["seg"][again][:, None] + (-distance if east else distance)).astype(SEGMENT)
