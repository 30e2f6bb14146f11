"""Linear Road in plain Python, one function per operator: what the Spark operators must give.

Each function takes all rows of its inputs, in the order of the input records, and returns all rows of its output. A row
carries the `id` of the record that caused it.

When does a minute end? In each direction of each expressway by itself: with the first report of another minute, or of
an earlier time, since input that is replayed begins again. That report causes the averages, LAVs and counts of the
minute, which thus have its id. Which tables does a toll depend on? Those of the minute before the report's: its LAVs,
its counts and the accidents at its end. They are complete when the report arrives, and do not change within a minute.
A minute without any report, or a return to an earlier time, leaves no tables and no vehicles behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from treadle.workloads.linear_road import rules
from treadle.workloads.linear_road.rules import CV, LAS, POS, Mode


class Report(NamedTuple):
    """A position report."""

    id: int
    minute: int
    time: int
    vid: int
    speed: int
    xway: int
    dir: int
    lane: int
    seg: int
    pos: int


class Average(NamedTuple):
    """The average speed of a vehicle in one segment and minute. `closing`: how many rows end the minute with this one.

    `closing` is 0 for a row that was sent within the minute.
    """

    id: int
    minute: int
    xway: int
    dir: int
    seg: int
    vid: int
    speed: int
    closing: int


class Lav(NamedTuple):
    """The latest average velocity of a segment, and the minute that it is for."""

    id: int
    minute: int
    xway: int
    dir: int
    seg: int
    lav: float


class Count(NamedTuple):
    """The number of vehicles in a segment and minute; without a segment it says only that the minute has ended."""

    id: int
    minute: int
    xway: int
    dir: int
    seg: int | None = None
    count: int | None = None  # type: ignore[assignment] # hides tuple.count


class Notification(NamedTuple):
    """A row at the sink: `kind` is `las`, `cv` or `pos`, and what does not belong to this kind is None."""

    id: int
    kind: str
    minute: int
    xway: int
    dir: int
    seg: int | None = None
    lav: float | None = None
    count: int | None = None  # type: ignore[assignment] # hides tuple.count
    toll: int | None = None
    vid: int | None = None
    time: int | None = None
    speed: int | None = None
    lane: int | None = None
    pos: int | None = None


Row = Notification


class Vehicle(NamedTuple):
    """Where a vehicle was last, and how many consecutive reports it has sent from there."""

    seg: int
    lane: int
    pos: int
    same: int


class Tables(NamedTuple):
    """What tolls of one minute depend on: LAVs and counts by segment, and the segments that accidents make free."""

    lavs: dict[int, float]
    counts: dict[int, int]
    free: set[int]


def run(lines: Iterable[str], mode: Mode = "per_minute") -> dict[str, list[Row]]:
    """The rows of the sink, in the order of the records that caused them."""
    reports = dispatcher(lines)
    if mode == "per_minute":
        lavs, counts = last_average_speed(average_speed(reports)), count_vehicles(reports)
        tolls = toll_notification_pos(reports, lavs, counts)
    else:
        lavs, counts = latest_values(previous_speed(reports)), progress(reports)
        tolls = zero_toll(reports)
    found = [*toll_notification_las(lavs), *toll_notification_cv(counts), *tolls]
    return {"sink": sorted(found, key=lambda row: (row.id, rules.KINDS.index(row.kind), row.seg or 0))}


def dispatcher(lines: Iterable[str]) -> list[Report]:
    """Parse records and keep position reports. Records without nine integers at their beginning are dropped."""
    found = []
    for number, line in enumerate(lines):
        try:
            kind, time, vid, speed, xway, lane, direction, seg, pos = [int(text) for text in line.split(",")[:9]]
        except ValueError:
            continue
        if kind == rules.POSITION_REPORT:
            minute = rules.minute_of(time)
            found.append(Report(number, minute, time, vid, speed, xway, direction, lane, seg, pos))
    return found


# Mode per_minute


def average_speed(reports: Iterable[Report]) -> list[Average]:
    """For each vehicle the average speed within a minute and a segment: when it enters another one, or at the end."""
    found: list[Average] = []
    for rows in directions(reports):
        for minute, following in pairwise([*minutes(rows), None]):
            assert minute is not None
            speeds: dict[int, tuple[Report, list[int]]] = {}
            for report in minute:
                first, values = speeds.get(report.vid, (report, []))
                if report.seg != first.seg:
                    found.append(_average(report.id, first, values, 0))
                    first, values = report, []
                speeds[report.vid] = first, [*values, report.speed]
            if following is not None:
                for first, values in speeds.values():
                    found.append(_average(following[0].id, first, values, len(speeds)))
    return sorted(found)


def _average(number: int, first: Report, speeds: Sequence[int], closing: int) -> Average:
    mean = sum(speeds) // len(speeds)
    return Average(number, first.minute, first.xway, first.dir, first.seg, first.vid, mean, closing)


def last_average_speed(averages: Iterable[Average]) -> list[Lav]:
    """At the end of a minute, for each segment with vehicles, the mean of its averages of the last five minutes."""
    found: list[Lav] = []
    for rows in directions(averages):
        values: list[Average] = []
        latest = 0
        """The last minute that has ended."""
        for minute in _ended_minutes(rows):
            last = minute[-1]
            if last.minute <= latest:
                values = []
            latest = last.minute
            values = [each for each in values if each.minute > latest - rules.LAV_MINUTES] + minute
            for seg in {each.seg for each in minute}:
                speeds = [each.speed for each in values if each.seg == seg]
                found.append(Lav(last.id, latest + 1, last.xway, last.dir, seg, sum(speeds) / len(speeds)))
    return sorted(found)


def _ended_minutes(averages: Iterable[Average]) -> list[list[Average]]:
    """The averages of each minute that has ended."""
    found: list[list[Average]] = []
    current: list[Average] = []
    closing = 0
    for average in averages:
        current.append(average)
        closing += average.closing > 0
        if closing and closing == average.closing:
            found.append(current)
            current, closing = [], 0
    return found


def count_vehicles(reports: Iterable[Report]) -> list[Count]:
    """At the end of a minute, the count of each segment with more than 50 different vehicles, or one row without."""
    found: list[Count] = []
    for rows in directions(reports):
        for minute, following in pairwise(minutes(rows)):
            first, number = minute[0], following[0].id
            vehicles: dict[int, set[int]] = {}
            for report in minute:
                vehicles.setdefault(report.seg, set()).add(report.vid)
            counts = {seg: len(each) for seg, each in sorted(vehicles.items()) if len(each) > rules.FREE_VEHICLES}
            for seg, count in counts.items():
                found.append(Count(number, first.minute, first.xway, first.dir, seg, count))
            if not counts:
                found.append(Count(number, first.minute, first.xway, first.dir))
    return sorted(found, key=lambda row: row.id)


def toll_notification_las(lavs: Iterable[Lav]) -> list[Notification]:
    """One notification for each LAV."""
    return [Notification(row.id, LAS, row.minute, row.xway, row.dir, row.seg, row.lav) for row in lavs]


def toll_notification_cv(counts: Iterable[Count]) -> list[Notification]:
    """One notification for each count."""
    return [Notification(row.id, CV, row.minute, row.xway, row.dir, row.seg, count=row.count) for row in counts]


def toll_notification_pos(
    reports: Iterable[Report], lavs: Iterable[Lav], counts: Iterable[Count]
) -> list[Notification]:
    """A notification with the toll whenever a vehicle enters a segment, by the tables of the minute before."""
    lavs, counts = list(lavs), list(counts)
    found: list[Notification] = []
    for rows in directions(reports):
        before: list[Report] = []
        vehicles: dict[int, Vehicle] = {}
        for minute in minutes(rows):
            first = minute[0]
            if before and first.minute == before[0].minute + 1:
                present = {report.vid for report in before}
                vehicles = {vid: vehicle for vid, vehicle in vehicles.items() if vid in present}
                tables = Tables(
                    {row.seg: row.lav for row in lavs if _is_of(row, first)},
                    {row.seg: row.count for row in counts if _is_of(row, first) if row.seg is not None and row.count},
                    free_segments(vehicles.values(), first.dir),
                )
            else:
                vehicles, tables = {}, Tables({}, {}, set())
            for report in minute:
                found += _notified(report, vehicles, tables)
            before = minute
    return sorted(found, key=lambda row: row.id)


def _is_of(row: Lav | Count, first: Report) -> bool:
    """Whether a row was caused by the first report of a minute."""
    return (row.id, row.xway, row.dir) == (first.id, first.xway, first.dir)


def _notified(report: Report, vehicles: dict[int, Vehicle], tables: Tables) -> list[Notification]:
    """Follow a vehicle, and notify it if it has entered a segment. Vehicles in the exit lane are forgotten."""
    before = vehicles.pop(report.vid, None)
    if report.lane == rules.EXIT_LANE:
        return []
    there = before is not None and (before.lane, before.pos) == (report.lane, report.pos)
    same = before.same + 1 if before is not None and there else 1
    vehicles[report.vid] = Vehicle(report.seg, report.lane, report.pos, same)
    if before is not None and before.seg == report.seg:
        return []
    return [notice(report, tables.lavs.get(report.seg), tables.counts.get(report.seg), toll(report.seg, tables))]


def notice(report: Report, lav: float | None, count: int | None, due: int) -> Notification:
    """The notification of a vehicle about its toll."""
    return Notification(
        report.id, POS, report.minute, report.xway, report.dir, report.seg, lav, count, due,
        report.vid, report.time, report.speed, report.lane, report.pos,
    )  # fmt: skip


def toll(seg: int, tables: Tables) -> int:
    """The toll of a segment: 2 * (count - 50)^2 if it is slow, crowded and not near an accident."""
    lav, count = tables.lavs.get(seg), tables.counts.get(seg)
    if lav is None or count is None or lav >= rules.SLOW or count <= rules.FREE_VEHICLES or seg in tables.free:
        return 0
    return 2 * (count - rules.FREE_VEHICLES) ** 2


def free_segments(vehicles: Iterable[Vehicle], direction: int) -> set[int]:
    """Segments from which an accident (two stopped vehicles at one position) is at most 4 segments downstream."""
    stopped = [vehicle for vehicle in vehicles if vehicle.same >= rules.STOPPED_AFTER]
    places = [(vehicle.lane, vehicle.pos) for vehicle in stopped]
    accidents = {vehicle.seg for vehicle in stopped if places.count((vehicle.lane, vehicle.pos)) > 1}
    upstream = -1 if direction == rules.EAST else 1
    return {seg + upstream * distance for seg in accidents for distance in range(rules.DOWNSTREAM + 1)}


# Mode constant_load


def previous_speed(reports: Iterable[Report]) -> list[Average]:
    """For each report the speed of the report before in its direction, or its own if it is the first."""
    found: list[Average] = []
    for rows in directions(reports):
        for before, report in zip([rows[0], *rows], rows, strict=False):
            found.append(_average(report.id, before, [before.speed], 0))
    return sorted(found)


def latest_values(averages: Iterable[Average]) -> list[Lav]:
    """For each average the mean of the latest 11 averages of its segment in the last five minutes."""
    found: list[Lav] = []
    for rows in directions(averages):
        latest: dict[int, list[Average]] = {}
        for row in rows:
            values = [*latest.get(row.seg, []), row][-rules.LAV_VALUES :]
            values = [each for each in values if row.minute - rules.LAV_MINUTES < each.minute <= row.minute]
            latest[row.seg] = values
            lav = sum(each.speed for each in values) / len(values)
            found.append(Lav(row.id, row.minute + 1, row.xway, row.dir, row.seg, lav))
    return sorted(found)


def progress(reports: Iterable[Report]) -> list[Count]:
    """For each report one count without a segment."""
    return [Count(report.id, report.minute, report.xway, report.dir) for report in reports]


def zero_toll(reports: Iterable[Report]) -> list[Notification]:
    """For each report a notification without tables: the toll is 0."""
    return [notice(report, None, None, 0) for report in reports]


# Order

Placed = TypeVar("Placed", Report, Average)


def directions(rows: Iterable[Placed]) -> list[list[Placed]]:
    """Rows by expressway and direction."""
    found: dict[tuple[int, int], list[Placed]] = {}
    for row in rows:
        found.setdefault((row.xway, row.dir), []).append(row)
    return list(found.values())


def minutes(reports: Sequence[Report]) -> list[list[Report]]:
    """The reports of one direction by minutes. A minute also ends where time goes back."""
    found = [[reports[0]]]
    for before, report in pairwise(reports):
        if report.minute != before.minute or report.time < before.time:
            found.append([])
        found[-1].append(report)
    return found
