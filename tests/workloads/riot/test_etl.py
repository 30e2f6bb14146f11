"""What each operator of ETL computes, by hand; and what the whole graph makes of its input."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from treadle.workloads.riot import etl, etl_reference, sensors
from treadle.workloads.riot.etl_reference import Part

ENTRIES = (
    '{"u":"string","n":"source","sv":"s1"},{"v":"6.16","u":"lon","n":"longitude"},{"v":"46.19","u":"lat","n":"latitude"},'
    '{"v":"8","u":"far","n":"temperature"},{"v":"53.7","u":"per","n":"humidity"},{"v":"0","u":"per","n":"light"},'
    '{"v":"411.02","u":"per","n":"dust"},{"v":"140","u":"per","n":"airquality_raw"}'
)
MESSAGE = f'1422748800000,{{"e":[{ENTRIES}],"bt":1422748800000}}'
META = "1422748800000,6.16,46.19"
JOINED = "1422748800000,s1,6.16,46.19,8.0,53.7,0.0,411.02,0.0"
ANNOTATED = f"{JOINED},nbh,radar"


def part(obs_type: str, obs_val: str, number: int = 0, sensor: str = "s1") -> Part:
    return Part(number, sensor, META, obs_type, obs_val)


def test_a_message_becomes_its_source_and_five_observations() -> None:
    assert etl_reference.senml_parse(7, MESSAGE) == [
        part("source", "s1", 7), part("temperature", "8", 7), part("humidity", "53.7", 7), part("light", "0", 7),
        part("dust", "411.02", 7), part("airquality_raw", "140", 7),
    ]  # fmt: skip


def test_there_are_no_parts_of_what_is_not_a_whole_message() -> None:
    for line in ("", "nonsense", "1,{", "1,5", '1,{"e":[]}', MESSAGE.replace("latitude", "altitude")):
        assert etl_reference.senml_parse(0, line) == []


def test_values_at_the_bounds_are_valid_and_those_beyond_are_not() -> None:
    for obs_type, inside, outside in (
        ("temperature", ("0.7", "35.1"), ("0.6", "35.2")),
        ("humidity", ("20.3", "69.1"), ("20.2", "69.2")),
        ("light", ("0", "5153"), ("-1", "5154")),
        ("dust", ("83.36", "3322.67"), ("83.35", "3322.68")),
        ("airquality_raw", ("12", "49"), ("11", "50")),
    ):
        for value in inside:
            assert etl_reference.range_filter(part(obs_type, value)).obs_val == value
        for value in (*outside, "many", "nan", "1e39"):
            assert etl_reference.range_filter(part(obs_type, value)).obs_val == "null"


def test_the_range_filter_leaves_the_source_as_it_is() -> None:
    assert etl_reference.range_filter(part("source", "s1")) == part("source", "s1")


def test_bounds_are_compared_in_single_precision() -> None:
    assert etl_reference.range_filter(part("temperature", "35.1000001")).obs_val == "35.1000001"


def test_the_bloom_filter_replaces_the_source_of_an_unknown_sensor_only() -> None:
    assert etl_reference.bloom_filter(part("source", "s1"), {"s1"}).obs_val == "s1"
    assert etl_reference.bloom_filter(part("source", "s1"), {"s2"}).obs_val == "null"
    assert etl_reference.bloom_filter(part("light", "1"), {"s2"}).obs_val == "1"


def test_an_invalid_value_becomes_the_mean_of_the_last_five_valid_ones() -> None:
    recent: dict[tuple[str, str], list[float]] = {}

    def value(text: str) -> str:
        return etl_reference.interpolation(part("light", text), recent).obs_val

    assert value("null") == "0.0"  # nothing yet
    assert [value("10"), value("20.5")] == ["10.0", "20.5"]
    assert value("null") == "15.25"  # (10 + 20.5) / 2
    assert value("null") == "15.25"  # a mean is not a valid value
    assert [value(text) for text in ("1", "2", "3", "4")] == ["1.0", "2.0", "3.0", "4.0"]
    assert value("null") == "6.1"  # (20.5 + 1 + 2 + 3 + 4) / 5


def test_sensors_and_types_are_interpolated_apart_and_the_source_not_at_all() -> None:
    recent = {("s1", "light"): [4.0]}
    assert etl_reference.interpolation(part("light", "null", sensor="s2"), recent).obs_val == "0.0"
    assert etl_reference.interpolation(part("dust", "null"), recent).obs_val == "0.0"
    assert etl_reference.interpolation(part("light", "null"), recent).obs_val == "4.0"
    assert etl_reference.interpolation(part("source", "null"), recent).obs_val == "null"


@given(st.lists(st.one_of(st.just("null"), st.floats(-1e6, 1e6).map(repr)), min_size=1))
def test_an_interpolated_value_lies_among_the_last_valid_ones(texts: list[str]) -> None:
    recent: list[float] = []
    for number, text in enumerate(texts):
        recent, value = etl_reference.interpolate(recent, text)
        valid = [float(each) for each in texts[: number + 1] if each != "null"]
        assert recent == valid[-5:]
        if recent:
            assert min(recent) - 1e-6 <= float(value) <= max(recent) + 1e-6


def test_a_message_is_put_together_when_its_last_part_has_come_and_then_forgotten() -> None:
    parts = [etl_reference.range_filter(each) for each in etl_reference.senml_parse(3, MESSAGE)]
    others = etl_reference.senml_parse(4, MESSAGE)
    recent: dict[tuple[str, str], list[float]] = {}
    pending: dict[int, dict[str, str]] = {}
    mixed = [each for pair in zip(parts, others[:5], strict=False) for each in pair] + parts[5:]
    joined = [etl_reference.join(etl_reference.interpolation(each, recent), pending) for each in mixed]
    assert joined == [None] * 10 + [JOINED]
    assert list(pending) == [4]


def test_an_annotation_is_appended_and_a_record_without_one_is_dropped() -> None:
    assert etl_reference.annotate(JOINED, {"s1": "nbh,radar"}) == ANNOTATED
    assert etl_reference.annotate(JOINED, {"s2": "nbh,radar"}) is None


def test_rows_are_inserted_a_hundred_at_a_time() -> None:
    batches = list(etl_reference.table_insert((number, ANNOTATED) for number in range(250)))
    assert [len(batch) for batch in batches] == [100, 100, 50]
    assert [number for batch in batches for number, _ in batch] == list(range(250))


def test_an_entity_has_two_keys_and_all_columns() -> None:
    assert json.loads(etl_reference.entity(12, ANNOTATED)) == {
        "PartitionKey": "s1", "RowKey": "1422748800000-12", "timestamp": "1422748800000", "source": "s1",
        "longitude": "6.16", "latitude": "46.19", "temperature": "8.0", "humidity": "53.7", "light": "0.0",
        "dust": "411.02", "airquality_raw": "0.0", "location": "nbh", "type": "radar",
    }  # fmt: skip


def test_an_annotated_record_is_written_as_senml_in_the_form_of_the_input() -> None:
    written = etl_reference.csv_to_senml("1422748800000,s1,6.16,46.19,8,53.7,0,411.02,140,nbh,radar")
    added = '{"u":"string","n":"location","sv":"nbh"},{"u":"string","n":"type","sv":"radar"}'
    assert written == f'{{"e":[{ENTRIES},{added}],"bt":1422748800000}}'


def test_each_message_of_a_known_sensor_comes_out_of_both_sinks_once_and_in_order() -> None:
    lines = sensors.etl_lines(300, 1, sensors=20)
    lines[5], lines[9] = "nonsense", MESSAGE
    rows = etl_reference.run(lines)
    expected = [number for number in range(300) if number not in (5, 9)]
    assert {sink: [number for number, _ in found] for sink, found in rows.items()} == {
        "table_insert": expected,
        "publish": expected,
    }
    for (_, message), (number, stored) in zip(rows["publish"], rows["table_insert"], strict=True):
        published = {entry["n"]: entry.get("v", entry.get("sv")) for entry in json.loads(message)["e"]}
        assert published.items() <= json.loads(stored).items()
        assert published["source"] in lines[number]


def test_the_graph_has_nine_operators_after_its_input_and_two_sinks() -> None:
    p = etl.pipeline(prefix="my-")
    reads = {node.name: node.inputs for node in p.nodes}
    assert p.node("lines").topic == "my-lines"
    assert reads == {
        "lines": (), "senml_parse": ("lines",), "range_filter": ("senml_parse",), "bloom_filter": ("range_filter",),
        "interpolation": ("bloom_filter",), "join": ("interpolation",), "annotate": ("join",),
        "table_insert": ("annotate",), "csv_to_senml": ("annotate",), "publish": ("csv_to_senml",),
        "table_insert_out": ("table_insert",), "publish_out": ("publish",),
    }  # fmt: skip
