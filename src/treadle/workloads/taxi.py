"""Taxi Drives, the first application of Stream-Economics (section 7): the union of two streams, and two heavy sinks.

The paper describes the graph and the promises, not the data. So rides and fares are generated here, each from its
number alone, in the form that Flink's training uses. `cells` counts events by place, `drivers` sums up amounts by
driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from treadle.estimates import corrected
from treadle.pipelines.api.pipeline import Pipeline
from treadle.workloads.burn import burn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RIDES, FARES = "rides", "fares"
BEGIN = 1_577_880_000
"""Time at which the first ride begins, 2020-01-01T12:00Z, in seconds since 1970; then one begins every 20 s."""
BETWEEN = 20
WEST, EAST, SOUTH, NORTH = -74.15, -73.6, 40.4, 41.1
CELL_LON, CELL_LAT = 0.0014, 0.00125
"""Size of a cell in degrees: about 120 m by 140 m."""
DRIVERS = 200
EVENT = "ride long, at long, driver long, lon double, lat double, amount double"


def ride(number: int) -> dict[str, Any]:
    """A ride: where and when it began; `amount` is its duration in minutes."""
    random = np.random.default_rng([1, number])
    return {
        "ride": number,
        "at": BEGIN + BETWEEN * number,
        "driver": _driver(number),
        "lon": _within(random, WEST, EAST),
        "lat": _within(random, SOUTH, NORTH),
        "amount": _duration(number),
    }


def fare(number: int) -> dict[str, Any]:
    """The fare of a ride; `amount` is in dollars."""
    random = np.random.default_rng([2, number])
    tip = float(np.clip(random.normal(10.0, 15.0), 0.0, 60.0))
    tolls = float(random.uniform(0.0, 5.0)) if number % 10 == 0 else 0.0
    begun = ride(number)
    return {**begun, "amount": 3.0 + _duration(number) + tip + tolls}


def pipeline(
    hashes: tuple[int, int],
    *,
    minimum: tuple[float, float] = (0.4, 0.6),
    priority: tuple[float, float] = (0.0, 0.0),
    source: Literal["feed", "topic"] = "topic",
    prefix: str = "",
    name: str = "taxi",
) -> Pipeline:
    """The graph of the paper's Figure 2, with `hashes` per row in the two sinks."""
    p = Pipeline(name)
    add(p, hashes, minimum=minimum, priority=priority, source=source, prefix=prefix)
    return p


def add(
    p: Pipeline,
    hashes: tuple[int, int],
    *,
    minimum: tuple[float, float] = (0.4, 0.6),
    priority: tuple[float, float] = (0.0, 0.0),
    source: Literal["feed", "topic"] = "topic",
    prefix: str = "",
) -> None:
    """Add the graph to a pipeline, also beside other applications. The topics' names begin with `prefix`."""
    for stream in (RIDES, FARES):
        if source == "topic":
            p.topic(stream, schema=EVENT, topic=f"{prefix}{stream}")
        else:
            p.feed(stream, schema=EVENT)
        p.operator(name=f"{stream}_read", inputs=(stream,))(_read(stream))

    @p.operator(inputs=(f"{RIDES}_read", f"{FARES}_read"))
    def events(rides: DataFrame, fares: DataFrame) -> DataFrame:
        return rides.unionByName(fares, allowMissingColumns=True)

    @p.sink(name="cells", inputs="events", priority=priority[0], min_accuracy=minimum[0])
    def cells(events: DataFrame) -> None:
        from pyspark.sql import functions as f

        column, row = f.floor((f.col("lon") - WEST) / CELL_LON), f.floor((f.col("lat") - SOUTH) / CELL_LAT)
        place = events.withColumn("cell", f.concat_ws("/", column, row)).withColumn("h", _work(hashes[0]))
        counted = place.groupBy("cell").agg(corrected().alias("count"), f.max("h"))
        counted.write.format("noop").mode("append").save()

    @p.sink(name="drivers", inputs="events", priority=priority[1], min_accuracy=minimum[1])
    def drivers(events: DataFrame) -> None:
        from pyspark.sql import functions as f

        worked = events.withColumn("h", _work(hashes[1]))
        summed = worked.groupBy("driver").agg(corrected("amount").alias("sum"), f.max("h"))
        summed.write.format("noop").mode("append").save()


def _read(stream: str) -> Any:
    def read(rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return rows.withColumn("stream", f.lit(stream))

    return read


def _work(hashes: int) -> Any:
    from pyspark.sql import functions as f

    return f.expr(burn("cast(ride as string)", hashes))


def _driver(number: int) -> int:
    return 2_013_000_000 + int(np.random.default_rng([3, number]).integers(DRIVERS))


def _duration(number: int) -> float:
    """The duration of a ride in minutes."""
    return float(np.clip(np.random.default_rng([4, number]).normal(20.0, 40.0), 0.0, 600.0))


def _within(random: np.random.Generator, low: float, high: float) -> float:
    return float(np.clip(random.normal((low + high) / 2, (high - low) / 8), low, high))
