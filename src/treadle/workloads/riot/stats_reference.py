"""RIoTBench's STATS in plain Python (Lachesis, section 6.2): what each operator computes, record by record.

`run` is the whole graph. `stats_operators` runs the same graph on Spark, and uses `kalman`, `track`, `second_moment`,
`register_of` and `estimate` from here. Unlike in RIoTBench's code, as shipped, the regression uses the filter's output
and the second moment the observed value, sensors are told apart by their ids, and all five observation types pass.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from treadle.workloads.riot.etl_reference import Row, single
from treadle.workloads.riot.sensors import COLUMNS, sensor_ids

Key = tuple[str, str]
"""A sensor id and an observation type."""
OBS_TYPES = ("temp", "humid", "light", "dust", "airq")
"""The types of the last five columns."""
META_COLUMNS = 4
"""Time, source, longitude and latitude."""
LARGEST = 3.4e38
"""Observations with a larger absolute value are left out: single precision can't hold them."""
PROCESS_NOISE, SENSOR_NOISE = 0.125, 0.32
FIRST_ESTIMATE, FIRST_VARIANCE = 0.0, 30.0
TRAINED, PREDICTED = 10, 10
"""Number of estimates through which the regression draws a line, and number of values that it predicts."""
TRACKED = 10
"""Number of different values that the second moment tracks."""
REGISTER_BITS = 5
REGISTERS = 2**REGISTER_BITS
CORRECTION = 0.79402
"""The factor of LogLog's estimate, twice that of its authors, because ranks begin with 0 here."""
LONGEST_RANK = 31
"""Rank of a hash without a bit that is set."""


class Observed(NamedTuple):
    """One observation of a record."""

    id: int
    sensor_id: str
    meta: str
    obs_type: str
    obs_val: float


class Filtered(NamedTuple):
    """State of a Kalman filter."""

    estimate: float
    variance: float


def run(lines: Iterable[str]) -> dict[str, list[Row]]:
    """All output rows of each sink, in the order of the input. The ids of the lines are 0, 1, 2, …"""
    known = frozenset(sensor_ids())
    filters: dict[Key, Filtered] = {}
    estimates: dict[Key, list[float]] = {}
    moments: dict[Key, tuple[int, dict[float, int]]] = {}
    sketches: dict[str, list[int]] = {}
    rows: dict[str, list[Row]] = {"publish_regression": [], "publish_moment": [], "publish_count": []}
    for number, line in enumerate(lines):
        for each in parse_project(number, line):
            if not bloom_filter_check(each, known):
                continue
            filtered = kalman_filter(each, filters)
            predicted = sliding_linear_regression(filtered, estimates)
            if predicted is not None:
                rows["publish_regression"].append(publish(each, predicted))
            rows["publish_moment"].append(publish(each, second_order_moment(each, moments)))
            rows["publish_count"].append(publish(each, distinct_approx_count(each, sketches)))
    return rows


def parse_project(number: int, line: str) -> list[Observed]:
    """Split a record into its observations. Those that are no numbers are left out, as are records of other lengths."""
    cells = line.split(",")
    if len(cells) != len(COLUMNS):
        return []
    meta = ",".join(cells[:META_COLUMNS])
    values = zip(OBS_TYPES, map(_number, cells[META_COLUMNS:]), strict=True)
    return [Observed(number, cells[1], meta, kind, value) for kind, value in values if abs(value) <= LARGEST]


def bloom_filter_check(observed: Observed, known: Collection[str]) -> bool:
    """Whether the observation is one of a known sensor; others are dropped."""
    return observed.sensor_id in known


def kalman_filter(observed: Observed, filters: dict[Key, Filtered]) -> Observed:
    """Replace the observed value by the estimate of its key's filter."""
    key = observed.sensor_id, observed.obs_type
    filters[key] = kalman(filters.get(key, Filtered(FIRST_ESTIMATE, FIRST_VARIANCE)), observed.obs_val)
    return observed._replace(obs_val=filters[key].estimate)


def kalman(state: Filtered, measured: float) -> Filtered:
    """One step of a scalar Kalman filter, in single precision."""
    variance = single(state.variance + PROCESS_NOISE)
    gain = single(variance / single(variance + single(SENSOR_NOISE)))
    correction = single(gain * single(single(measured) - state.estimate))
    return Filtered(single(state.estimate + correction), single(single(1.0 - gain) * variance))


def sliding_linear_regression(filtered: Observed, estimates: dict[Key, list[float]]) -> str | None:
    """Predict the next values of a key from its last estimates, from the 11th estimate on."""
    values = estimates.setdefault((filtered.sensor_id, filtered.obs_type), [])
    values.append(filtered.obs_val)
    if len(values) <= TRAINED:
        return None
    last = len(values)
    return "#".join(map(repr, predictions(range(last - TRAINED + 1, last + 1), values[-TRAINED:])))


def predictions(indices: Sequence[int], values: Sequence[float]) -> list[float]:
    """The values that a least-squares line through (index, value) has at the next `PREDICTED` indices."""
    middle, mean = sum(indices) / len(indices), sum(values) / len(values)
    covariance = sum((index - middle) * (value - mean) for index, value in zip(indices, values, strict=True))
    slope = covariance / sum((index - middle) ** 2 for index in indices)
    return [mean + slope * (indices[-1] + step - middle) for step in range(1, PREDICTED + 1)]


def second_order_moment(observed: Observed, moments: dict[Key, tuple[int, dict[float, int]]]) -> str:
    """Estimate the second moment of the values that a key has had so far."""
    key = observed.sensor_id, observed.obs_type
    seen, counts = moments.get(key, (0, {}))
    moments[key] = seen + 1, track(counts, observed.obs_val, seen + 1, "/".join(key))
    return repr(second_moment(*moments[key]))


def track(counts: dict[float, int], value: float, seen: int, key: str) -> dict[float, int]:
    """Count a value that is tracked, else track it, in the place of another one if there are `TRACKED` already.

    Which one is replaced is random: the hash of the key and of the number of values seen chooses it.
    """
    if value in counts:
        return {**counts, value: counts[value] + 1}
    if len(counts) < TRACKED:
        return {**counts, value: 1}
    chosen = int.from_bytes(hashlib.sha1(f"{key}/{seen}".encode()).digest()[:8], "big") % TRACKED
    slots = list(counts.items())
    slots[chosen] = value, 1
    return dict(slots)


def second_moment(seen: int, counts: dict[float, int]) -> float:
    """The estimate of Alon, Matias and Szegedy, as the mean over the tracked values only."""
    return sum(seen * (2 * count - 1) for count in counts.values()) / len(counts)


def distinct_approx_count(observed: Observed, sketches: dict[str, list[int]]) -> str:
    """Estimate how many different sensors have sent observations of this type so far."""
    registers = sketches.setdefault(observed.obs_type, [0] * REGISTERS)
    register, rank = register_of(observed.sensor_id)
    registers[register] = max(registers[register], rank)
    return str(estimate(registers))


@functools.lru_cache(maxsize=10_000)
def register_of(sensor_id: str) -> tuple[int, int]:
    """The register of LogLog to which a sensor belongs, and its rank there: the number of zeros that end its hash."""
    (value,) = struct.unpack("<i", hashlib.sha1(sensor_id.encode()).digest()[:4])
    rest = value >> REGISTER_BITS
    return value % REGISTERS, (rest & -rest).bit_length() - 1 if rest else LONGEST_RANK


def estimate(registers: Sequence[float]) -> int:
    """The number of different sensors by LogLog of Durand and Flajolet."""
    return int(CORRECTION * REGISTERS * 2 ** (sum(registers) / REGISTERS))


def publish(observed: Observed, result: str) -> Row:
    """The text of a result, `meta-type-result`. Sending it to a broker is disabled, as in the evaluation."""
    return observed.id, f"{observed.meta.replace(',', ';')}-{observed.obs_type}-{result}"


def _number(text: str) -> float:
    """The number that a text stands for; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
