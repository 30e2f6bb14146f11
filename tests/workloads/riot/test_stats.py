"""What each operator of STATS computes, by hand; and what the whole graph makes of its input."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.workloads.riot import sensors, stats, stats_reference
from treadle.workloads.riot.stats_reference import Filtered, Observed

LINE = "1422748800000,s1,6.16,-46.19,8,53.7,0,411.02,140"
META = "1422748800000,s1,6.16,-46.19"
VALUES = st.floats(-1e4, 1e4)


def observed(value: float, obs_type: str = "temp", sensor: str = "s1") -> Observed:
    return Observed(0, sensor, META, obs_type, value)


def test_a_record_becomes_five_observations_with_its_first_four_columns() -> None:
    assert stats_reference.parse_project(7, LINE) == [
        Observed(7, "s1", META, "temp", 8.0), Observed(7, "s1", META, "humid", 53.7),
        Observed(7, "s1", META, "light", 0.0), Observed(7, "s1", META, "dust", 411.02),
        Observed(7, "s1", META, "airq", 140.0),
    ]  # fmt: skip


def test_columns_that_are_no_numbers_and_records_of_other_lengths_are_left_out() -> None:
    assert stats_reference.parse_project(0, "") == stats_reference.parse_project(0, LINE + ",1") == []
    found = stats_reference.parse_project(0, META + ",8,,nan,1e39,x")
    assert [(each.obs_type, each.obs_val) for each in found] == [("temp", 8.0)]


def test_observations_of_unknown_sensors_are_dropped() -> None:
    assert stats_reference.bloom_filter_check(observed(1.0), {"s1"})
    assert not stats_reference.bloom_filter_check(observed(1.0), {"s2"})


def test_the_kalman_filter_weighs_a_value_by_its_gain() -> None:
    first = stats_reference.kalman(Filtered(0.0, 30.0), 10.0)
    # P = 30 + 0.125 = 30.125; K = 30.125 / (30.125 + 0.32) = 0.9894892; x = 0 + K 10; P = (1 - K) 30.125 = 0.3166365
    assert first == pytest.approx((9.894892, 0.3166365), rel=1e-5)
    second = stats_reference.kalman(first, 20.0)
    # P = 0.4416365; K = 0.4416365 / 0.7616365 = 0.5798521; x = 9.894892 + K 10.105108; P = (1 - K) 0.4416365
    assert second == pytest.approx((15.754361, 0.1855527), rel=1e-5)


def test_each_sensor_and_type_has_a_filter_of_its_own() -> None:
    filters: dict[tuple[str, str], Filtered] = {}
    first = stats_reference.kalman_filter(observed(10.0), filters)
    for other in (observed(10.0, obs_type="dust"), observed(10.0, sensor="s2")):
        assert stats_reference.kalman_filter(other, filters).obs_val == first.obs_val
    assert stats_reference.kalman_filter(observed(10.0), filters).obs_val > first.obs_val


@given(st.lists(VALUES, min_size=1))
def test_an_estimate_lies_among_the_values_so_far_and_zero(values: list[float]) -> None:
    state = Filtered(stats_reference.FIRST_ESTIMATE, stats_reference.FIRST_VARIANCE)
    for number, value in enumerate(values):
        state = stats_reference.kalman(state, value)
        assert min(0.0, *values[: number + 1]) - 1e-2 <= state.estimate <= max(0.0, *values[: number + 1]) + 1e-2
        assert 0 < state.variance < stats_reference.FIRST_VARIANCE


def test_the_regression_predicts_from_the_11th_value_on_and_uses_the_last_ten() -> None:
    estimates: dict[tuple[str, str], list[float]] = {}
    values = [1000.0, *(3.0 + 2.0 * number for number in range(10))]  # the first one is out of the window at the 11th
    found = [stats_reference.sliding_linear_regression(observed(value), estimates) for value in values]
    assert found[:10] == [None] * 10
    assert found[10] is not None
    predicted = [float(each) for each in found[10].split("#")]
    assert predicted == pytest.approx([23.0, 25.0, 27.0, 29.0, 31.0, 33.0, 35.0, 37.0, 39.0, 41.0])


def test_a_line_is_drawn_by_least_squares() -> None:
    # Indices 1, 2, 3, values 1, 2, 6: means 2 and 3, slope (-1 (1 - 3) + 1 (6 - 3)) / 2 = 2.5, so 3 + 2.5 (4 - 2) = 8.
    assert stats_reference.predictions([1, 2, 3], [1.0, 2.0, 6.0])[:3] == pytest.approx([8.0, 10.5, 13.0])


@given(st.lists(VALUES, min_size=10, max_size=10), VALUES, st.integers(0, 10**6))
def test_predictions_move_with_the_values_and_do_not_depend_on_where_counting_began(
    values: list[float], more: float, begin: int
) -> None:
    predicted = stats_reference.predictions(range(10), values)
    moved = stats_reference.predictions(range(begin, begin + 10), [value + more for value in values])
    assert moved == pytest.approx([value + more for value in predicted], abs=1e-6)


def test_the_second_moment_is_the_mean_over_the_tracked_values() -> None:
    moments: dict[tuple[str, str], tuple[int, dict[float, int]]] = {}
    found = [stats_reference.second_order_moment(observed(value), moments) for value in (5.0, 5.0, 7.0)]
    # 1 (2 - 1) / 1; 2 (4 - 1) / 1; (3 (4 - 1) + 3 (2 - 1)) / 2
    assert found == ["1.0", "6.0", "6.0"]
    assert stats_reference.second_order_moment(observed(5.0, sensor="s2"), moments) == "1.0"


@given(st.lists(st.integers(0, 30).map(float), max_size=60), st.text(max_size=5))
def test_at_most_ten_values_are_tracked_and_a_new_one_replaces_one_of_them(values: list[float], key: str) -> None:
    counts: dict[float, int] = {}
    for number, value in enumerate(values):
        before, counts = counts, stats_reference.track(counts, value, number + 1, key)
        assert counts == stats_reference.track(before, value, number + 1, key)
        assert counts[value] == before.get(value, 0) + 1
        assert len(counts) == min(10, len(before.keys() | {value}))
        assert all(before[other] == count for other, count in counts.items() if other != value)


def test_replaced_values_are_spread_over_all_ten_places() -> None:
    full = {float(value): 2 for value in range(10)}
    places = [list(stats_reference.track(full, -1.0, seen, "s1/temp")).index(-1.0) for seen in range(11, 1_011)]
    assert all(60 <= places.count(place) <= 140 for place in range(10))


def test_a_sensor_has_the_register_and_the_rank_of_its_hash() -> None:
    # SHA-1 of "abc" begins with a9 99 3e 36: 0x363e99a9 ends in 01001, so register 9; the bit above is 1, so rank 0.
    assert stats_reference.register_of("abc") == (9, 0)
    # SHA-1 of "" begins with da 39 a3 ee: 0xeea339da ends in 1110 11010, so register 26 and one zero above it.
    assert stats_reference.register_of("") == (26, 1)


def test_an_empty_sketch_counts_25_and_rank_one_everywhere_twice_as_many() -> None:
    assert stats_reference.estimate([0] * 32) == 25  # 0.79402 * 32 = 25.4
    assert stats_reference.estimate([1] * 32) == 50  # 50.8


def test_counts_of_different_sensors_never_fall_and_repeated_ones_change_nothing() -> None:
    sketches: dict[str, list[int]] = {}
    counts = [
        int(stats_reference.distinct_approx_count(observed(0.0, sensor=sensor), sketches))
        for sensor in sensors.sensor_ids()
    ]
    assert counts == sorted(counts)
    assert counts[-1] == pytest.approx(2_162, rel=0.5)  # with 32 registers the standard error is 1.3 / sqrt(32) = 0.23
    again = [stats_reference.distinct_approx_count(observed(0.0, sensor=each), sketches) for each in ("", "abc")]
    assert stats_reference.distinct_approx_count(observed(9.0, sensor="abc"), sketches) == again[1]
    assert stats_reference.distinct_approx_count(observed(0.0, "dust"), sketches) == "25"


def test_a_result_is_published_with_semicolons_in_its_meta_data() -> None:
    text = "1422748800000;s1;6.16;-46.19-light-1#2"
    assert stats_reference.publish(observed(0.0, "light"), "1#2") == (0, text)


def test_a_record_has_ten_results_at_first_and_fifteen_when_its_key_is_warm() -> None:
    rows = stats_reference.run(sensors.stats_lines(30, 1, sensors=1))
    ids = {sink: [number for number, _ in found] for sink, found in rows.items()}
    every = [number for number in range(30) for _ in range(5)]
    assert ids == {"publish_regression": every[50:], "publish_moment": every, "publish_count": every}
    for _, text in rows["publish_regression"]:
        assert all(math.isfinite(float(each)) for each in text.partition("-light-")[2].split("#") if each)


def test_the_graph_has_three_branches_each_with_its_own_instance_of_the_publisher() -> None:
    p = stats.pipeline(prefix="my-")
    reads = {node.name: node.inputs[0] for node in p.nodes if node.inputs}
    assert p.node("lines").topic == "my-lines"
    assert reads == {
        "parse_project": "lines", "bloom_filter_check": "parse_project",
        "kalman_filter": "bloom_filter_check", "second_order_moment": "bloom_filter_check",
        "distinct_approx_count": "bloom_filter_check", "sliding_linear_regression": "kalman_filter",
        "publish_regression": "sliding_linear_regression", "publish_moment": "second_order_moment",
        "publish_count": "distinct_approx_count", "publish_regression_out": "publish_regression",
        "publish_moment_out": "publish_moment", "publish_count_out": "publish_count",
    }  # fmt: skip
