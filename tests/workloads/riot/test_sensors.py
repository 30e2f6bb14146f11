"""The generated sensor data has the form and the statistics of the sample that it stands for."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.errors import ConfigError
from treadle.model import Floats
from treadle.workloads.riot import sensors

MANY = 40_000
PASSED = {"temperature": 0.927, "humidity": 0.842, "light": 0.992, "dust": 0.901, "airquality_raw": 0.917}
"""Share of each observation's values within the bounds of the range filter, in the original sample."""


@pytest.fixture(scope="module")
def observed() -> Floats:
    """A row per record, a column per observation type, of records of all sensors."""
    lines = sensors.stats_lines(MANY, 1, sensors=sensors.SENSORS)
    return np.array([line.split(",")[4:] for line in lines], dtype=np.float64)


@pytest.fixture(scope="module")
def valid(observed: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    low, high = (np.array([getattr(each, bound) for each in sensors.OBSERVATIONS]) for bound in ("low", "high"))
    return (low <= observed) & (observed <= high)


def test_the_annotation_table_has_a_row_for_each_sensor_in_ten_locations_and_of_seven_types() -> None:
    rows = [row.replace(":", ",").split(",") for row in sensors.annotation_table()]
    assert [row[0] for row in rows] == list(sensors.sensor_ids())
    assert len({row[0] for row in rows}) == 2_162
    assert all(len(row[0]) == 27 for row in rows)
    locations, types = (Counter(row[column] for row in rows) for column in (1, 2))
    assert (len(locations), min(locations.values()), max(locations.values())) == (10, 192, 248)
    assert types == {
        "analog": 444, "electronic": 417, "solar": 407, "heat": 248, "digital": 219, "ultrasound": 218, "radar": 209,
    }  # fmt: skip


def test_sensors_are_at_88_sites_and_stay_there() -> None:
    places: dict[str, set[tuple[str, ...]]] = {}
    for line in sensors.stats_lines(MANY, 2):
        _, source, longitude, latitude, *_ = line.split(",")
        places.setdefault(source, set()).add((longitude, latitude))
    assert len(places) == 788
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) == 88


def test_an_etl_line_is_a_time_and_senml_in_the_form_of_the_sample() -> None:
    (line,) = sensors.etl_lines(1, 3)
    time, _, text = line.partition(",")
    assert time == "1422748800000"
    message = json.loads(text)
    assert list(message) == ["e", "bt"]
    assert message["bt"] == 1_422_748_800_000
    assert [(entry["n"], entry["u"]) for entry in message["e"]] == [
        ("source", "string"), ("longitude", "lon"), ("latitude", "lat"), ("temperature", "far"), ("humidity", "per"),
        ("light", "per"), ("dust", "per"), ("airquality_raw", "per"),
    ]  # fmt: skip
    assert [set(entry) - {"n", "u"} for entry in message["e"]] == [{"sv"}] + 7 * [{"v"}]
    assert all(isinstance(entry.get("v", ""), str) for entry in message["e"])
    assert text == json.dumps(message, separators=(",", ":"))


@settings(max_examples=20)
@given(st.integers(0, 200), st.integers(0, 10**6), st.integers(1, sensors.SENSORS))
def test_both_queries_read_the_same_records_of_as_many_sensors_as_wanted(count: int, seed: int, many: int) -> None:
    lines = sensors.stats_lines(count, seed, sensors=many)
    assert len(lines) == count
    assert {line.split(",")[1] for line in lines} <= set(sensors.sensor_ids()[:many])
    for line, other in zip(lines, sensors.etl_lines(count, seed, sensors=many), strict=True):
        message = json.loads(other.partition(",")[2])
        values = [entry.get("v", entry.get("sv")) for entry in message["e"]]
        assert ",".join([str(message["bt"]), *values]) == line


def test_records_depend_on_the_seed_alone_and_a_minute_has_1000_of_them() -> None:
    lines = sensors.stats_lines(1_001, 4)
    assert lines == sensors.stats_lines(1_001, 4)
    assert lines != sensors.stats_lines(1_001, 5)
    assert int(lines[1_000].split(",")[0]) - int(lines[0].split(",")[0]) == 60_000


@pytest.mark.parametrize("count", [0, -1, 2_163])
def test_a_number_of_sensors_that_there_are_not_is_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=f"sensors is {count}"):
        sensors.etl_lines(1, sensors=count)


@pytest.mark.parametrize("number", range(5))
def test_values_have_the_quantiles_of_the_sample(observed: Floats, number: int) -> None:
    each = sensors.OBSERVATIONS[number]
    column = observed[:, number]
    assert column.min() >= each.quantiles[0]
    assert column.max() <= each.quantiles[-1]
    for share, wanted in zip((0.05, 0.25, 0.5, 0.75, 0.95), each.quantiles[1:-1], strict=True):
        low, high = np.mean(column < wanted), np.mean(column <= wanted)
        assert low - 0.02 <= share <= high + 0.02, (each.name, share)


def test_the_range_filter_passes_as_many_values_as_in_the_sample(
    valid: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> None:
    for each, share in zip(sensors.OBSERVATIONS, valid.mean(axis=0), strict=True):
        assert share == pytest.approx(PASSED[each.name], abs=0.01), each.name
    assert 1 - valid.mean() == pytest.approx(0.084, abs=0.005)
    assert valid.all(axis=1).mean() == pytest.approx(0.639, abs=0.01)


def test_most_invalid_values_have_a_valid_one_of_the_same_sensor_before_them() -> None:
    bounds = [(each.low, each.high) for each in sensors.OBSERVATIONS]
    had: set[tuple[str, int]] = set()
    invalid = after_valid = 0
    for line in sensors.stats_lines(5_000, 6, sensors=50):
        _, source, _, _, *values = line.split(",")
        for number, ((low, high), value) in enumerate(zip(bounds, values, strict=True)):
            if low <= float(value) <= high:
                had.add((source, number))
            else:
                invalid += 1
                after_valid += (source, number) in had
    assert after_valid > 0.95 * invalid
