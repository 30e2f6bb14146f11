"""RIoTBench's STATS as functions of Spark DataFrames (Lachesis, section 6.2).

`stats_reference` says what each computes.

Every row has the columns `id` and `created` of its input record. Observations have `sensor_id`, `meta`, `obs_type` and
`obs_val`; results have `result`, a text, in the place of `obs_val`.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from treadle.workloads.riot.etl_operators import known
from treadle.workloads.riot.keyed import with_memory
from treadle.workloads.riot.sensors import COLUMNS
from treadle.workloads.riot.stats_reference import (
    FIRST_ESTIMATE,
    FIRST_VARIANCE,
    LARGEST,
    META_COLUMNS,
    OBS_TYPES,
    REGISTERS,
    TRAINED,
    Filtered,
    estimate,
    kalman,
    predictions,
    register_of,
    second_moment,
    track,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def parse_project(lines: DataFrame) -> DataFrame:
    """Split each record into five observations."""
    from pyspark.sql import functions as f

    cells = lines.select("id", "created", f.split("line", ",").alias("c"))
    values = ", ".join(
        f"struct('{name}' AS obs_type, try_cast(get(c, {META_COLUMNS + number}) AS double) AS obs_val)"
        for number, name in enumerate(OBS_TYPES)
    )
    observed = cells.select("*", f.inline(f.expr(f"CASE WHEN size(c) = {len(COLUMNS)} THEN array({values}) END")))
    meta = f"concat_ws(',', slice(c, 1, {META_COLUMNS})) AS meta"
    found = observed.selectExpr("id", "created", "get(c, 1) AS sensor_id", meta, "obs_type", "obs_val")
    return found.where(f"abs(obs_val) <= {LARGEST}D")


def bloom_filter_check(observed: DataFrame) -> DataFrame:
    """Drop observations of unknown sensors, by a hash table of the known ids, as in ETL."""
    return observed.where(known())


def kalman_filter(observed: DataFrame) -> DataFrame:
    """Replace observed values by estimates of a Kalman filter per sensor and observation type.

    Each row also has the last estimates of its key, in the column `estimates`, for the regression. They are kept here
    because Spark allows only one operator with state in Python in the query of a sink (`keyed`).
    """
    estimated = with_memory(observed, "sensor_id", _kalman, "estimates array<double>")
    return estimated.selectExpr("*", "element_at(estimates, -1) AS obs_val")


def sliding_linear_regression(filtered: DataFrame) -> DataFrame:
    """Predict the next values of a key from its last estimates.

    A prediction of least squares is a sum of the estimates with constant weights, so an expression computes it.
    """
    rows = ", ".join(f"array({', '.join(f'{weight!r}D' for weight in row)})" for row in _weights())
    weighted = "aggregate(zip_with(last, w, (x, y) -> x * y), 0D, (total, each) -> total + each)"
    enough = filtered.where(f"size(estimates) > {TRAINED}").selectExpr(
        "id", "created", "sensor_id", "meta", "obs_type", f"slice(estimates, -{TRAINED}, {TRAINED}) AS last"
    )
    result = f"array_join(transform(array({rows}), w -> cast({weighted} AS string)), '#') AS result"
    return enough.selectExpr("id", "created", "sensor_id", "meta", "obs_type", result)


def second_order_moment(observed: DataFrame) -> DataFrame:
    """Estimate the second moment of the values of each sensor and observation type."""
    return with_memory(observed, "sensor_id", _moment, "result string")


def distinct_approx_count(observed: DataFrame) -> DataFrame:
    """Estimate how many different sensors there are for each observation type."""
    return with_memory(observed, "obs_type", _count, "result string")


def publish(results: DataFrame) -> DataFrame:
    """Publish the texts of results; sending them to a broker is disabled."""
    text = "concat(translate(meta, ',', ';'), '-', obs_type, '-', result) AS payload"
    return results.selectExpr("id", "created", text)


def _kalman(memory: list[float], _sensor: str, _type: str, value: float) -> tuple[list[float], list[float]]:
    """The memory is the variance, then the last estimates, one more than the regression uses."""
    state = Filtered(memory[-1], memory[0]) if memory else Filtered(FIRST_ESTIMATE, FIRST_VARIANCE)
    state = kalman(state, value)
    estimates = [*memory[1:], state.estimate][-TRAINED - 1 :]
    return [state.variance, *estimates], estimates


def _moment(memory: list[float], sensor: str, obs_type: str, value: float) -> tuple[list[float], str]:
    """The memory is the number of values seen, then each tracked value with its count."""
    seen = int(memory[0]) + 1 if memory else 1
    before = {tracked: int(count) for tracked, count in zip(memory[1::2], memory[2::2], strict=True)}
    counts = track(before, value, seen, f"{sensor}/{obs_type}")
    return [float(seen), *map(float, chain.from_iterable(counts.items()))], repr(second_moment(seen, counts))


def _count(memory: list[float], sensor: str, _type: str, _value: float) -> tuple[list[float], str]:
    """The memory is the registers of the sketch."""
    registers = memory or [0.0] * REGISTERS
    register, rank = register_of(sensor)
    registers[register] = max(registers[register], float(rank))
    return registers, str(estimate(registers))


def _weights() -> list[list[float]]:
    """For each prediction the weights of the last estimates: what it would be if one were 1 and the others 0."""
    units = [[float(row == column) for column in range(TRAINED)] for row in range(TRAINED)]
    return [list(row) for row in zip(*(predictions(range(TRAINED), unit) for unit in units), strict=True)]
