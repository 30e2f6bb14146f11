"""The generator of Linear Road: the format of its records, and traffic as LinearGenerator's rules describe it."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from treadle.errors import ConfigError
from treadle.workloads.linear_road import records
from treadle.workloads.linear_road.records import SEGMENT_FEET, SMALL, Road

FIELDS = (
    "type",
    "time",
    "vid",
    "speed",
    "xway",
    "lane",
    "dir",
    "seg",
    "pos",
    "qid",
    "sinit",
    "send",
    "dow",
    "tod",
    "day",
)


@cache
def full() -> list[dict[str, int]]:
    """The first 40,000 records of a full road."""
    return parsed(records.lines(40_000))


@cache
def small() -> list[dict[str, int]]:
    return parsed(records.lines(40_000, seed=1, start=600, road=SMALL))


def parsed(lines: list[str]) -> list[dict[str, int]]:
    return [dict(zip(FIELDS, map(int, line.split(",")), strict=True)) for line in lines]


def reports(rows: list[dict[str, int]]) -> dict[int, list[dict[str, int]]]:
    """Position reports by vehicle."""
    found: dict[int, list[dict[str, int]]] = {}
    for row in rows:
        if row["type"] == 0:
            found.setdefault(row["vid"], []).append(row)
    return found


def journeys(rows: list[dict[str, int]]) -> list[list[dict[str, int]]]:
    """Position reports by vehicle, from its entrance to its exit."""
    found: list[list[dict[str, int]]] = []
    for vehicle in reports(rows).values():
        found.append([])
        for row in vehicle:
            if found[-1] and found[-1][-1]["lane"] == 4:
                found.append([])
            found[-1].append(row)
    return found


def test_records_are_reproducible_and_longer_lists_begin_with_shorter_ones() -> None:
    assert records.lines(300, seed=5, road=SMALL) == records.lines(500, seed=5, road=SMALL)[:300]
    assert records.lines(300, seed=5, road=SMALL) != records.lines(300, seed=6, road=SMALL)


def test_records_are_in_the_order_of_time_and_their_fields_are_in_range() -> None:
    rows = full()
    times = [row["time"] for row in rows]
    assert times == sorted(times)
    assert times[0] == 1_800
    for row in rows:
        if row["type"] == 0:
            assert 0 <= row["speed"] <= 100
            assert row["lane"] in range(5)
            assert row["dir"] in (0, 1)
            assert row["seg"] == row["pos"] // SEGMENT_FEET in range(100)
            assert {row[name] for name in FIELDS[9:]} == {-1}


def test_six_of_a_thousand_records_are_queries_and_one_in_six_of_them_asks_for_a_day() -> None:
    kinds = Counter(row["type"] for row in full())
    assert set(kinds) == {0, 2, 3}
    assert kinds[0] / kinds.total() == pytest.approx(1 / 1.006, abs=0.002)
    assert kinds[3] / (kinds[2] + kinds[3]) == pytest.approx(1 / 6, abs=0.1)
    queries = [row for row in full() if row["type"]]
    assert [row["qid"] for row in queries] == list(range(1, len(queries) + 1))
    assert all(row["day"] in range(1, 69) if row["type"] == 3 else row["day"] == -1 for row in queries)


def test_as_many_cars_enter_as_the_sine_curve_says() -> None:
    first = {row["vid"]: row["time"] for row in reversed(full()) if row["type"] == 0}
    seconds = range(1_800, 2_000)
    expected = [20 * (math.sin(math.pi * time / 10_800) + 1.05) for time in seconds]
    assert sum(time in seconds for time in first.values()) == pytest.approx(sum(expected), rel=0.03)


def test_two_expressways_have_twice_the_cars() -> None:
    one, two = (parsed(records.lines(3_000, expressways=count)) for count in (1, 2))
    entered = [len({row["vid"] for row in rows if row["time"] < 1_820}) for rows in (one, two)]
    assert entered[1] / entered[0] == pytest.approx(2, rel=0.1)
    assert {row["xway"] for row in two if row["type"] == 0} == {0, 1}


def test_a_car_enters_at_the_edge_of_a_segment_and_drives_on_in_its_direction() -> None:
    for journey in journeys(full()):
        first = journey[0]
        east = first["dir"] == 0
        assert (first["lane"], first["speed"]) == (0, 10)
        assert first["pos"] == (first["seg"] if east else first["seg"] + 1) * SEGMENT_FEET - (not east)
        assert first["seg"] <= 97 if east else first["seg"] >= 2
        for before, row in pairwise(journey):
            assert row["time"] == before["time"] + 30
            assert row["dir"] == before["dir"]
            assert (row["pos"] - before["pos"]) * (1 if east else -1) >= 0
            assert abs(row["pos"] - before["pos"]) <= 30 * 100 * 5_280 / 3_600


def test_cars_travel_one_segment_past_the_entrance_and_are_slow_in_the_exit_lane() -> None:
    lanes = Counter[int]()
    for journey in journeys(small()):
        for row in journey:
            assert (row["lane"] == 0) == (row["seg"] == journey[0]["seg"])
            assert row["lane"] != 4 or row["speed"] == 10
            lanes[row["lane"]] += 1
    assert set(lanes) == {0, 1, 2, 3, 4}


def test_one_in_ten_cars_enters_again_after_1000_to_1999_seconds() -> None:
    away, exits, last = list[int](), 0, small()[-1]["time"]
    for vehicle in reports(small()).values():
        for before, row in pairwise([*vehicle, None]):
            assert before is not None
            if before["lane"] == 4 and before["time"] < last - 2_000:
                exits += 1
                away += [row["time"] - before["time"]] if row is not None else []
    assert all(1_000 <= seconds <= 1_999 for seconds in away)
    assert len(away) / exits == pytest.approx(0.1, abs=0.05)


def test_two_cars_have_an_accident_that_is_cleared() -> None:
    standing, longest = Counter[tuple[int, int, int]](), 0
    for vehicle in reports(small()).values():
        run = 1
        for before, row in pairwise(vehicle):
            run = run + 1 if (before["pos"], before["lane"]) == (row["pos"], row["lane"]) else 1
            longest = max(longest, run)
            if run == 4:
                standing[row["dir"], row["lane"], row["pos"]] += 1
    assert set(standing.values()) == {2}
    assert longest <= 1 + SMALL.accident_after[1] // 30


def test_a_crowded_segment_slows_cars_down() -> None:
    def speed(arrivals: float) -> float:
        rows = parsed(records.lines(6_000, road=Road(segments=10, arrivals=arrivals)))
        travelling = [row["speed"] for row in rows if row["type"] == 0 and row["lane"] in (1, 2, 3)]
        return sum(travelling) / len(travelling)

    assert speed(0.5) > speed(8.0) + 10


def test_traffic_begins_again_after_the_last_second_of_the_day() -> None:
    rows = parsed(records.lines(600, start=10_780, road=SMALL))
    times = [row["time"] for row in rows]
    assert max(times) == 10_799
    assert times.index(10_780, times.index(10_799)) > 0


@pytest.mark.parametrize(
    "wrong",
    [{"start": 10_800}, {"start": -1}, {"expressways": 0}, {"road": {"segments": 2}}, {"road": {"arrivals": 0}}],
)
def test_a_road_without_traffic_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="traffic"):
        records.lines(10, **{**wrong, **({"road": Road(**wrong["road"])} if "road" in wrong else {})})
