"""The stateful operators of Linear Road before the tolls, each as a function of its memory and of new rows.

Their key is (xway, dir). So each of them sees when a minute ends in its direction, and its memory ends with the minute:
a vehicle that sends no more reports leaves nothing behind. The rows of a batch come in the order of their ids, and are
given on in this order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.workloads.linear_road import rules
from treadle.workloads.linear_road.arrays import (
    AVERAGE,
    COUNT,
    LAV,
    Clock,
    Key,
    Kind,
    Rows,
    by_minutes,
    changes,
    clock_of,
    columns,
    filled,
    none,
)

HELD: Kind = np.dtype([("vid", "i4"), ("seg", "i4"), ("sum", "i8"), ("count", "i8")])
"""The reports of a vehicle in its segment since it entered it, or since the minute began."""
SUMS: Kind = np.dtype([("minute", "i4"), ("seg", "i4"), ("sum", "i8"), ("count", "i8")])
"""The averages of a segment in a minute."""
VEHICLE_IN_SEGMENT: Kind = np.dtype("i8")
"""A segment and, in the lower 32 bits, a vehicle."""


def average_speed(_: Key, memory: tuple[Clock, Rows] | None, reports: Rows) -> tuple[Rows, Any]:
    """Give the average speed of a vehicle when it enters another segment, and of all vehicles when the minute ends."""
    clock, held = memory or (None, none(HELD))
    found = [none(AVERAGE)]
    for part, ended in by_minutes(reports, clock):
        if ended is not None:
            found.append(_averages(held, part[0], ended, len(held)))
            held = held[:0]
        done, causes, held = _stretches(held, part)
        found.append(_averages(done, causes, part["minute"][0], 0))
    return np.concatenate(found), (clock_of(reports, clock), held)


def _stretches(held: Rows, reports: Rows) -> tuple[Rows, Rows, Rows]:
    """Sum up each vehicle's reports while it is in one segment.

    Returns the sums of segments that were left, the reports that show this, and the sums that go on.
    """
    vid = np.concatenate([held["vid"], reports["vid"]])
    order = np.argsort(vid, kind="stable")
    vid, seg = vid[order], np.concatenate([held["seg"], reports["seg"]])[order]
    total = np.concatenate([held["sum"], reports["speed"]])[order]
    count = np.concatenate([held["count"], np.ones(len(reports), int)])[order]
    begins = np.flatnonzero(changes(vid, seg))
    total, count = np.add.reduceat(total, begins), np.add.reduceat(count, begins)
    sums = filled(HELD, len(begins), vid=vid[begins], seg=seg[begins], sum=total, count=count)
    goes_on = np.append(changes(sums["vid"])[1:], True)
    next_begins = np.append(begins[1:], 0)[~goes_on]
    done, causes = sums[~goes_on], reports[order[next_begins] - len(held)]
    by_id = np.argsort(causes["id"], kind="stable")
    return done[by_id], causes[by_id], sums[goes_on]


def _averages(sums: Rows, causes: Rows, minute: int, closing: int) -> Rows:
    given = columns(causes, "id", "created") | columns(sums, "vid", "seg")
    return filled(AVERAGE, len(sums), **given, speed=sums["sum"] // sums["count"], minute=minute, closing=closing)


def last_average_speed(_: Key, memory: tuple[Rows, Rows, int] | None, averages: Rows) -> tuple[Rows, Any]:
    """Give the LAVs of all segments with vehicles when all averages of a minute have arrived."""
    ended, running, arrived = memory or (none(SUMS), none(SUMS), 0)
    found = [none(LAV)]
    last_of_id = np.append(changes(averages["id"])[1:], True)[: len(averages)]
    for part in np.split(averages, 1 + np.flatnonzero(last_of_id & (averages["closing"] > 0))):
        if not len(part):
            continue
        new = filled(SUMS, len(part), **columns(part, "minute", "seg"), sum=part["speed"], count=1)
        running = _summed(np.concatenate([running, new]))
        arrived += int(np.count_nonzero(part["closing"]))
        if arrived and arrived == part["closing"][-1]:  # otherwise the rest of them is in a later batch
            lavs, ended = _lavs(ended, running, part[-1])
            found.append(lavs)
            running, arrived = running[:0], 0
    return np.concatenate(found), (ended, running, arrived)


def _summed(sums: Rows) -> Rows:
    """One row for each segment, with the minute of the first row."""
    ordered = sums[np.argsort(sums["seg"], kind="stable")]
    begins = np.flatnonzero(changes(ordered["seg"]))
    found: Rows = ordered[begins]
    for name in ("sum", "count"):
        found[name] = np.add.reduceat(ordered[name], begins)
    return found


def _lavs(ended: Rows, running: Rows, cause: Rows) -> tuple[Rows, Rows]:
    """The LAVs at the end of a minute, and the sums of the minutes that later LAVs may need."""
    minute = int(cause["minute"])
    if len(ended) and ended["minute"].max() >= minute:  # time went back
        ended = ended[:0]
    ended = np.concatenate([ended[ended["minute"] > minute - rules.LAV_MINUTES], running])
    sums = _summed(ended)
    sums = sums[np.isin(sums["seg"], running["seg"])]
    given = {"seg": sums["seg"], "lav": sums["sum"] / sums["count"], "minute": minute + 1}
    return filled(LAV, len(sums), **columns(cause, "id", "created"), **given, closing=len(sums)), ended


def count_vehicles(_: Key, memory: tuple[Clock, Rows] | None, reports: Rows) -> tuple[Rows, Any]:
    """Give the counts of segments with more than 50 vehicles when the minute ends, or one row that says so."""
    clock, vehicles = memory or (None, none(VEHICLE_IN_SEGMENT))
    found = [none(COUNT)]
    for part, ended in by_minutes(reports, clock):
        if ended is not None:
            found.append(_counts(vehicles, part[0], ended))
            vehicles = vehicles[:0]
        vehicles = np.union1d(vehicles, part["seg"].astype("i8") << 32 | part["vid"])
    return np.concatenate(found), (clock_of(reports, clock), vehicles)


def _counts(vehicles: Rows, cause: Rows, minute: int) -> Rows:
    """The counts of a minute; a row without a segment if there are none."""
    segments, counts = np.unique(vehicles >> 32, return_counts=True)
    crowded = counts > rules.FREE_VEHICLES
    given = {**columns(cause, "id", "created"), "minute": minute}
    if not crowded.any():
        return filled(COUNT, 1, **given, closing=1)
    segments, counts = segments[crowded], counts[crowded]
    return filled(COUNT, len(counts), **given, seg=segments, count=counts, closing=len(counts))


def previous_speed(_: Key, memory: Rows | None, reports: Rows) -> tuple[Rows, Any]:
    """With constant load: give for each report the speed of the report before."""
    before = reports[:1] if memory is None else memory
    earlier = np.concatenate([before, reports])
    given = columns(reports, "id", "created") | columns(earlier[:-1], "minute", "seg", "vid", "speed")
    return filled(AVERAGE, len(reports), **given, closing=0), earlier[-1:]


def latest_values(_: Key, memory: dict[int, list[tuple[int, int]]] | None, averages: Rows) -> tuple[Rows, Any]:
    """With constant load: give for each average the mean of the latest values of its segment."""
    latest = dict(memory or {})
    lavs = []
    for seg, minute, speed in averages[["seg", "minute", "speed"]].tolist():
        values = [*latest.get(seg, ()), (minute, speed)][-rules.LAV_VALUES :]
        latest[seg] = [value for value in values if minute - rules.LAV_MINUTES < value[0] <= minute]
        lavs.append(sum(value for _, value in latest[seg]) / len(latest[seg]))
    given = columns(averages, "id", "created", "seg", "closing")
    return filled(LAV, len(averages), **given, minute=averages["minute"] + 1, lav=lavs), latest
