"""The reference of Linear Road, with numbers that are worked out here."""

from __future__ import annotations

from treadle.workloads.linear_road import records, reference
from treadle.workloads.linear_road.reference import Average, Count, Lav, Notification, Tables, Vehicle
from treadle.workloads.linear_road.rules import Mode
from workloads.linear_road.scenes import JAM, jam, line


def rows_of(kind: str, lines: list[str], mode: Mode = "per_minute") -> list[Notification]:
    return [row for row in reference.run(lines, mode)["sink"] if row.kind == kind]


def test_the_dispatcher_keeps_position_reports_and_numbers_all_records() -> None:
    lines = ["2,1834,7,-1,-1,-1,-1,-1,-1,1,-1,-1,-1,-1,-1", "0,18", "0,1834,20541,57,0,2,1,63,335871,-1", "0,a,,,,,,,"]
    [report] = reference.dispatcher(lines)
    assert report == (2, 31, 1834, 20541, 57, 0, 1, 2, 63, 335871)  # 1834 s are in the minute 30 * 60 .. 31 * 60 - 1


def test_averages_leave_when_a_vehicle_enters_a_segment_and_when_the_minute_ends() -> None:
    lines = [
        line(0, 1, 5, speed=30),
        line(10, 2, 5, speed=40),
        line(30, 1, 5, speed=35),
        line(50, 1, 6, speed=50),  # vehicle 1 leaves segment 5 with (30 + 35) // 2 = 32
        line(61, 3, 5, speed=60),  # minute 1 ends: vehicle 1 in segment 6, vehicle 2 in segment 5
        line(62, 1, 7, speed=60),  # its stretch in segment 6 has ended already
    ]
    assert reference.average_speed(reference.dispatcher(lines)) == [
        Average(3, 1, 0, 0, 5, 1, 32, 0),
        Average(4, 1, 0, 0, 5, 2, 40, 2),
        Average(4, 1, 0, 0, 6, 1, 50, 2),
    ]


def test_directions_and_expressways_end_their_minutes_by_themselves() -> None:
    lines = [line(0, 1, 5), line(1, 2, 5, to=1), line(2, 3, 5, xway=1), line(60, 2, 5, to=1)]
    assert [row[:5] for row in reference.average_speed(reference.dispatcher(lines))] == [(3, 1, 0, 1, 5)]


def test_the_lav_is_the_mean_of_the_averages_of_five_minutes() -> None:
    averages = [Average(minute, minute, 0, 0, 5, 1, 10 * minute, 1) for minute in range(1, 7)]
    averages.append(Average(7, 7, 0, 0, 6, 1, 99, 1))
    lavs = {(row.minute, row.seg): row.lav for row in reference.last_average_speed(averages)}
    assert lavs == {
        (2, 5): 10.0,
        (3, 5): 15.0,  # (10 + 20) / 2
        (4, 5): 20.0,
        (5, 5): 25.0,
        (6, 5): 30.0,  # (10 + 20 + 30 + 40 + 50) / 5
        (7, 5): 40.0,  # minute 1 no longer counts
        (8, 6): 99.0,  # nobody was in segment 5
    }


def test_a_lav_waits_for_all_averages_of_its_minute() -> None:
    within, first, second = (Average(n, 1, 0, 0, 5, n, speed, 2) for n, speed in ((1, 10), (2, 20), (2, 33)))
    within = within._replace(closing=0)
    assert reference.last_average_speed([within, first]) == []
    assert reference.last_average_speed([within, first, second]) == [Lav(2, 2, 0, 0, 5, 21.0)]  # (10 + 20 + 33) / 3


def test_vehicles_are_counted_once_in_a_minute_where_more_than_50_are() -> None:
    fifty = [line(0, vid, 5) for vid in range(50)]
    more = [line(1, vid, 6) for vid in range(51)]
    counts = reference.count_vehicles(reference.dispatcher([*fifty, *fifty, *more, line(60, 0, 5)]))
    assert counts == [Count(151, 1, 0, 0, 6, 51)]
    none = reference.count_vehicles(reference.dispatcher([*fifty, line(60, 0, 5)]))
    assert none == [Count(50, 1, 0, 0)]


def test_a_toll_is_due_in_slow_and_crowded_segments() -> None:
    tables = Tables({1: 39.9, 2: 40.0, 3: 20.0, 4: 20.0, 6: 20.0}, {1: 53, 2: 53, 3: 50, 4: 60, 5: 60}, {4})
    tolls = {seg: reference.toll(seg, tables) for seg in range(1, 7)}
    assert tolls == {1: 18, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0}  # 2 * 3^2; fast; not crowded; accident; unknown; unknown


def test_two_stopped_vehicles_at_one_position_free_five_segments() -> None:
    there, elsewhere = Vehicle(20, 2, 105_700, 4), Vehicle(20, 3, 105_700, 4)
    assert reference.free_segments([there, there], 0) == {16, 17, 18, 19, 20}
    assert reference.free_segments([there, there], 1) == {20, 21, 22, 23, 24}
    assert reference.free_segments([there, elsewhere, there._replace(same=3)], 0) == set()


def test_tolls_depend_on_the_minute_before_and_on_accidents() -> None:
    """200: 53 vehicles in minute 31, so 2 * 3^2. 201: the accident. 202: 53, 200 and 201 in minute 33, so 2 * 5^2."""
    rows = rows_of("pos", jam())
    assert {row.vid: row.toll for row in rows if row.vid in (200, 201, 202) and row.seg == 11} == {
        200: 18,
        201: 0,
        202: 50,
    }
    assert sum(row.toll or 0 for row in rows) == 18 + 50
    [free] = [row for row in rows if row.vid == 201 and row.seg == 11]
    assert (free.count, free.lav is not None and free.lav < 40) == (54, True)
    assert [row.count for row in rows_of("cv", jam()) if row.xway == JAM] == [53, 54, 55]


def test_a_vehicle_is_notified_once_for_each_segment_and_not_in_the_exit_lane() -> None:
    lines = [
        line(0, 1, 5, lane=0),
        line(30, 1, 5),
        line(60, 1, 6),
        line(90, 1, 7, lane=4),
        line(100, 1, 7, lane=0),  # it has left the road, and enters again
    ]
    assert [(row.id, row.seg) for row in rows_of("pos", lines)] == [(0, 5), (2, 6), (4, 7)]


def test_a_vehicle_that_sends_nothing_for_a_minute_is_forgotten() -> None:
    lines = [line(0, 1, 5), line(30, 2, 5), line(60, 2, 5), line(125, 1, 5), line(126, 2, 5)]
    assert [row.id for row in rows_of("pos", lines)] == [0, 1, 3]


def test_after_a_minute_without_any_report_all_is_forgotten() -> None:
    lines = [line(0, 1, 5), line(60, 1, 5), line(180, 1, 5)]
    assert [(row.id, row.lav) for row in rows_of("pos", lines)] == [(0, None), (2, None)]


def test_replayed_input_gives_the_same_tolls_again() -> None:
    lines = [*jam(), *records.lines(300, road=records.SMALL)]
    once, twice = rows_of("pos", lines), rows_of("pos", lines + lines)
    assert twice == [*once, *(row._replace(id=row.id + len(lines)) for row in once)]


def test_with_constant_load_each_report_gives_three_notifications_without_tolls() -> None:
    lines = [*jam(), *records.lines(200, road=records.SMALL)]
    rows = reference.run(lines, "constant_load")["sink"]
    reports = [row.id for row in reference.dispatcher(lines)]
    assert [(row.id, row.kind) for row in rows] == [(each, kind) for each in reports for kind in ("las", "cv", "pos")]
    assert {row.toll for row in rows if row.kind == "pos"} == {0}


def test_with_constant_load_the_lav_is_the_mean_of_the_latest_11_speeds_before() -> None:
    lines = [line(number, number, 5, speed=10 * number) for number in range(1, 14)]
    lavs = [row.lav for row in rows_of("las", lines, "constant_load")]
    assert lavs[:3] == [10.0, 10.0, 40 / 3]  # of 10; 10, 10; 10, 10, 20
    assert lavs[-1] == sum(range(20, 130, 10)) / 11
    later = [*lines[:2], line(300, 3, 5, speed=70), line(301, 4, 5, speed=80)]
    assert [row.lav for row in rows_of("las", later, "constant_load")][-1] == 70.0  # minute 1 is five minutes ago
