"""Generates the sensor data that ETL and STATS of RIoTBench read (Lachesis, section 6.2).

The original data, a sample of Sense Your City, has no licence. So the records here are drawn from its published
quantiles. A sensor has a place in each distribution and stays near it, but each of its records has noise of its own:
so a sensor with an invalid value now and then has valid values before it, from which ETL can interpolate.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from treadle.errors import ConfigError
from treadle.model import Floats

SENSORS = 2_162
"""Rows of the annotation table, and known sensor ids."""
SAMPLED = 788
"""Sensor ids that occur in the original sample of 1,000 records."""
SITES = 88
BEGIN = 1_422_748_800_000
"""Time of the first record, 2015-02-01T00:00Z, in milliseconds since 1970."""
BETWEEN = 60
"""Milliseconds between two records: 1,000 records a minute."""
NOISE = 0.1
"""Standard deviation of the noise of a record, as a share of all records of its distribution."""
_TABLE_SEED = 2_015

LOCATIONS = {
    "building1": 192, "building2": 204, "building3": 208, "building4": 211, "nbh": 214,
    "ngh": 218, "ece": 221, "serc": 222, "cds": 224, "sensa": 248,
}  # fmt: skip
"""Location -> number of its sensors."""
TYPES = {
    "analog": 444, "electronic": 417, "solar": 407, "heat": 248, "digital": 219, "ultrasound": 218, "radar": 209,
}  # fmt: skip
"""Type -> number of its sensors."""
_CITIES = ((6.14, 46.2), (-71.06, 42.36), (77.59, 12.97), (-43.2, -22.91), (-122.42, 37.77), (121.47, 31.23),
           (103.82, 1.35))  # fmt: skip
"""Longitude and latitude of the cities around which the sites are."""
_SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH = 24
"""Random letters of a sensor id, after its beginning `ci4`."""


class Observation(NamedTuple):
    """What one column of the data looks like. `low` and `high` are the bounds of ETL's range filter."""

    name: str
    unit: str
    low: float
    high: float
    below: float
    """Share of the values below `low`. With `above` it gives the share that the range filter passes in the sample."""
    above: float
    quantiles: tuple[float, ...]
    """Values at the shares 0, 0.05, 0.25, 0.5, 0.75, 0.95 and 1 of the sample."""
    decimals: int

    def values(self, shares: Floats) -> Floats:
        """The inverse of the cumulative distribution: the value below which each share of all values is."""
        known = dict(zip(_SHARES, self.quantiles, strict=True))
        known |= {self.below: self.low, 1.0 - self.above: self.high}
        values: Floats = np.interp(shares, sorted(known), [known[share] for share in sorted(known)])
        return np.round(values, self.decimals) + 0.0  # no -0.0, which would be written as -0


OBSERVATIONS = (
    Observation("temperature", "far", 0.7, 35.1, 0.034, 0.039, (-8.1, 2.9, 11.3, 23.9, 28.4, 34.4, 40.3), 1),
    Observation("humidity", "per", 20.3, 69.1, 0.036, 0.122, (12.0, 23.0, 38.4, 48.0, 60.4, 74.2, 99.9), 1),
    Observation("light", "per", 0.0, 5_153.0, 0.0, 0.008, (0.0, 0.0, 0.0, 0.0, 321.0, 1_949.0, 9_800.0), 0),
    Observation("dust", "per", 83.36, 3_322.67, 0.0545, 0.0445,
                (-1.0, 75.0, 398.0, 798.0, 1_562.0, 3_143.0, 10_428.0), 2),
    Observation("airquality_raw", "per", 12.0, 49.0, 0.02, 0.063, (4.0, 13.0, 19.0, 24.0, 30.0, 53.0, 970.0), 0),
)  # fmt: skip
COLUMNS = ("timestamp", "source", "longitude", "latitude", *(each.name for each in OBSERVATIONS))
"""The columns of a record in the order of the schema."""

_SENML = (
    '{0},{{"e":[{{"u":"string","n":"source","sv":"{1}"}},{{"v":"{2}","u":"lon","n":"longitude"}},'
    '{{"v":"{3}","u":"lat","n":"latitude"}},{4}],"bt":{0}}}'
)
_ENTRIES = ",".join(f'{{"v":"%s","u":"{each.unit}","n":"{each.name}"}}' for each in OBSERVATIONS)


@functools.cache
def sensor_ids() -> tuple[str, ...]:
    """The ids of all known sensors: 27 letters and digits each, all different."""
    random = np.random.default_rng([_TABLE_SEED, 1])
    letters = np.array(list(_LETTERS))[random.integers(len(_LETTERS), size=(2 * SENSORS, _ID_LENGTH))]
    return tuple(dict.fromkeys("ci4" + "".join(row) for row in letters))[:SENSORS]


@functools.cache
def annotation_table() -> tuple[str, ...]:
    """The annotation table, one row per known sensor, as `id:location,type`."""
    random = np.random.default_rng([_TABLE_SEED, 2])
    locations, types = (
        random.permutation(np.repeat(list(counts), list(counts.values()))) for counts in (LOCATIONS, TYPES)
    )
    rows = zip(sensor_ids(), locations, types, strict=True)
    return tuple(f"{sensor}:{location},{kind}" for sensor, location, kind in rows)


@functools.cache
def site_positions() -> tuple[tuple[str, str], ...]:
    """Longitude and latitude of each site, as text. Sensor number i is at site i modulo the number of sites."""
    random = np.random.default_rng([_TABLE_SEED, 3])
    places = np.array([_CITIES[site % len(_CITIES)] for site in range(SITES)]) + random.uniform(-0.1, 0.1, (SITES, 2))
    return tuple((f"{longitude:.7f}", f"{latitude:.7f}") for longitude, latitude in places)


def etl_lines(count: int, seed: int = 0, *, sensors: int = SAMPLED) -> list[str]:
    """Records of the first `sensors` known sensors as ETL reads them: the time, a comma, and a SenML object."""
    made = []
    for time, source, longitude, latitude, *observed in _records(count, seed, sensors):
        made.append(_SENML.format(time, source, longitude, latitude, _ENTRIES % tuple(observed)))
    return made


def stats_lines(count: int, seed: int = 0, *, sensors: int = SAMPLED) -> list[str]:
    """The same records as STATS reads them: comma-separated values in the order of `COLUMNS`."""
    return [",".join(record) for record in _records(count, seed, sensors)]


def _records(count: int, seed: int, sensors: int) -> Iterator[tuple[str, ...]]:
    """Records as text, in the order of `COLUMNS`. Each is of a sensor drawn from all with equal probability."""
    if not 1 <= sensors <= SENSORS:
        raise ConfigError(f"sensors is {sensors}", where="workload riot", remedy=f"give a number from 1 to {SENSORS}")
    random = np.random.default_rng(seed)
    picked = random.integers(sensors, size=count)
    observed = []
    for each in OBSERVATIONS:
        places = (random.permutation(sensors) + 0.5) / sensors
        shares = _reflected(places[picked] + random.normal(0.0, NOISE, count))
        observed.append([f"{value:.7g}" for value in each.values(shares).tolist()])
    ids, positions = sensor_ids(), site_positions()
    times = (str(time) for time in range(BEGIN, BEGIN + BETWEEN * count, BETWEEN))
    for time, sensor, *values in zip(times, picked.tolist(), *observed, strict=True):
        yield (time, ids[sensor], *positions[sensor % SITES], *values)


def _reflected(shares: Floats) -> Floats:
    """Shares beyond 0 or 1, reflected there: uniform shares with noise are uniform again."""
    wave: Any = np.abs(np.mod(shares + 1.0, 2.0) - 1.0)
    return np.asarray(wave, dtype=np.float64)
