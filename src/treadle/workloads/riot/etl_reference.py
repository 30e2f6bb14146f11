"""RIoTBench's ETL in plain Python (Lachesis, section 6.2): what each operator computes, record by record.

`run` is the whole graph. `etl_operators` runs the same graph on Spark, and uses `interpolate` and `entity` from here.
Unlike in RIoTBench's code, `source` passes the interpolation unchanged, and a record of an unknown sensor is dropped.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from treadle.workloads.riot.sensors import COLUMNS, OBSERVATIONS, annotation_table, sensor_ids

Row = tuple[int, str]
"""The id of the input record, and the text that a sink gets."""
NULL = "null"
"""Text of a value that is not valid."""
SOURCE = "source"
PART_TYPES = (SOURCE, *(each.name for each in OBSERVATIONS))
"""The types of the six parts into which a message is split."""
RANGES = {each.name: (each.low, each.high) for each in OBSERVATIONS}
WINDOW = 5
"""Number of valid values that the interpolation keeps of each sensor and observation type."""
BATCH = 100
"""Rows that are inserted into the table together."""
UNITS = {"longitude": "lon", "latitude": "lat", **{each.name: each.unit for each in OBSERVATIONS}}
"""Columns with numbers except the time -> their units. All other columns are strings."""
ANNOTATED = (*COLUMNS, "location", "type")


class Part(NamedTuple):
    """One observation of a message, or its source."""

    id: int
    sensor_id: str
    meta: str
    """Time, longitude and latitude of the message, separated by commas."""
    obs_type: str
    obs_val: str


def run(lines: Iterable[str]) -> dict[str, list[Row]]:
    """All output rows of each sink, in the order of the input. The ids of the lines are 0, 1, 2, …"""
    known, table = frozenset(sensor_ids()), dict(row.split(":", 1) for row in annotation_table())
    recent: dict[tuple[str, str], list[float]] = {}
    pending: dict[int, dict[str, str]] = {}
    annotated: list[Row] = []
    for number, line in enumerate(lines):
        for part in senml_parse(number, line):
            checked = bloom_filter(range_filter(part), known)
            joined = join(interpolation(checked, recent), pending)
            row = None if joined is None else annotate(joined, table)
            if row is not None:
                annotated.append((number, row))
    inserted = [row for batch in table_insert(annotated) for row in batch]
    published = [publish(number, csv_to_senml(row)) for number, row in annotated]
    return {"table_insert": inserted, "publish": published}


def senml_parse(number: int, line: str) -> list[Part]:
    """Split a message into a part for its source and one for each observation.

    There are no parts of a text that is not SenML, or of a message without time, source, longitude or latitude.
    """
    try:
        message = json.loads(line.partition(",")[2])
        values = {entry["n"]: entry["v"] if "v" in entry else entry["sv"] for entry in message["e"]}
        meta = f"{message['bt']},{values['longitude']},{values['latitude']}"
        return [Part(number, values[SOURCE], meta, name, values[name]) for name in values if name in PART_TYPES]
    except (ValueError, KeyError, TypeError):
        return []


def range_filter(part: Part) -> Part:
    """Replace an observation that is no number within its range. Numbers are compared in single precision."""
    if part.obs_type not in RANGES:
        return part
    low, high = (single(bound) for bound in RANGES[part.obs_type])
    try:
        valid = low <= single(float(part.obs_val)) <= high
    except (ValueError, OverflowError):
        valid = False
    return part if valid else part._replace(obs_val=NULL)


def bloom_filter(part: Part, known: Collection[str]) -> Part:
    """Replace the source if it is not the id of a known sensor."""
    unknown = part.obs_type == SOURCE and part.sensor_id not in known
    return part._replace(obs_val=NULL) if unknown else part


def interpolation(part: Part, recent: dict[tuple[str, str], list[float]]) -> Part:
    """Replace an invalid observation. `recent` has the last valid values of each sensor and observation type."""
    if part.obs_type == SOURCE:
        return part
    key = part.sensor_id, part.obs_type
    recent[key], value = interpolate(recent.get(key, []), part.obs_val)
    return part._replace(obs_val=value)


def interpolate(recent: Sequence[float], value: str) -> tuple[list[float], str]:
    """The last valid values after this value, and the text that replaces it.

    A valid value is written as a float. An invalid one becomes the mean of the last valid values, or 0.0 without any.
    """
    if value != NULL:
        valid = float(value)
        return [*recent, valid][-WINDOW:], repr(valid)
    return list(recent), repr(sum(recent) / len(recent) if recent else 0.0)


def join(part: Part, pending: dict[int, dict[str, str]]) -> str | None:
    """Collect the parts of each message in `pending`; return its nine columns as one line when it has them all."""
    meta = zip(("timestamp", "longitude", "latitude"), part.meta.split(","), strict=True)
    fields = pending.setdefault(part.id, dict(meta))
    fields[part.obs_type] = part.obs_val
    if len(fields) < len(COLUMNS):
        return None
    del pending[part.id]
    return ",".join(fields[name] for name in COLUMNS)


def annotate(line: str, table: Mapping[str, str]) -> str | None:
    """Append location and type of the sensor. A record is dropped if the table does not have its sensor."""
    found = table.get(line.split(",")[1])
    return None if found is None else f"{line},{found}"


def table_insert(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Build entities from rows, `BATCH` at a time. The insertion itself is disabled, as in the evaluation."""
    waiting = iter(rows)
    while batch := list(islice(waiting, BATCH)):
        yield [(number, entity(number, line)) for number, line in batch]


def entity(number: int, line: str) -> str:
    """The entity of a table store for an annotated record: its two keys and its columns, as JSON."""
    columns = dict(zip(ANNOTATED, line.split(","), strict=True))
    keys = {"PartitionKey": columns[SOURCE], "RowKey": f"{columns['timestamp']}-{number}"}
    return json.dumps(keys | columns, separators=(",", ":"))


def csv_to_senml(line: str) -> str:
    """Write an annotated record as SenML again: the time, and an entry with name, unit and value per other column."""
    time, *values = line.split(",")
    entries = [_entry(name, value) for name, value in zip(ANNOTATED[1:], values, strict=True)]
    return json.dumps({"e": entries, "bt": int(time)}, separators=(",", ":"))


def publish(number: int, message: str) -> Row:
    """Publish a message. Sending it to a broker is disabled, as in the evaluation."""
    return number, message


def single(value: float) -> float:
    """The value rounded to single precision."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _entry(name: str, value: str) -> dict[str, Any]:
    if name in UNITS:
        return {"v": value, "u": UNITS[name], "n": name}
    return {"u": "string", "n": name, "sv": value}
