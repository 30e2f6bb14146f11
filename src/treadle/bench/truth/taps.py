"""An application's own counts (`workloads/java/treadle/tap/Tap.java`), and the errors of Treadle's figures.

Both parts of `treadle bench truth` use this module.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.bench.attach.rig import Rig
from treadle.bench.claims import Claims, at_most
from treadle.engines.spark.engine import SparkEngine
from treadle.model import Floats
from treadle.observe.provider import Provider
from treadle.values import Snapshot

Progress = Callable[[str, float], None]
PERIOD = 0.05
WINDOW = 2.0
"""Seconds over which rates, selectivities and costs are compared."""
FEW_ROWS, SMALL_PART = 20.0, 0.05
"""The error of a queue is small up to the larger of two limits: `FEW_ROWS`, and `SMALL_PART` of the true queue."""
LONGEST_LINES = 8192
"""Maximum bytes of two lines of counts."""


class Taps(NamedTuple):
    """The application's counts: by place, such as "filter in", one value for each of `times`, over all partitions."""

    times: Floats
    rows: Mapping[str, Floats]
    created: Mapping[str, Floats]
    """When the last row to pass was made, on the clock of `times`; of several partitions the earliest such time."""
    cpu: Mapping[str, Floats]

    def at(self, what: Mapping[str, Floats], place: str, when: Floats) -> Floats:
        return np.interp(when, self.times, what[place])


def read_taps(file: Path) -> Taps:
    """Read the whole file. Before its first row a place is not in the file; its counts are then 0."""
    return _taps(file.read_text())


def read_latest(file: Path) -> Taps:
    """Read only the last counts."""
    with file.open("rb") as text:
        text.seek(max(0, file.stat().st_size - LONGEST_LINES))
        last = text.read().decode()
    return _taps("\n".join(last.split("\n")[-2:]))


def _taps(text: str) -> Taps:
    wall = time.time() - time.monotonic()
    lines = [line.split("\t") for line in text.split("\n")[:-1]]
    times = np.array([int(line[0]) / 1e9 for line in lines])
    found: dict[str, dict[str, Floats]] = {}
    for number, line in enumerate(lines):
        for each in line[1:]:
            name, _, numbers = each.rpartition("=")
            place, _, partition = name.rpartition("/")
            columns = found.setdefault(place, {}).setdefault(partition, np.zeros((3, len(lines))))
            columns[:, number] = [float(part) for part in numbers.split(":")]
    rows = {place: sum(each[0] for each in parts.values()) for place, parts in found.items()}
    created = {
        place: np.min([each[1] / 1e9 - wall for each in parts.values()], axis=0) for place, parts in found.items()
    }
    cpu = {place: sum(each[2] for each in parts.values()) / 1e9 for place, parts in found.items()}
    return Taps(times, rows, created, cpu)


def readings(engine: SparkEngine, provider: Provider, rig: Rig, seconds: float) -> Iterator[tuple[float, Snapshot]]:
    """Yield whenever the engine has read the counters of tasks anew: the time, and the snapshot."""
    end, last = time.monotonic() + seconds, -math.inf
    while time.monotonic() < end:
        began = time.monotonic()
        if engine.news():
            snapshot = provider.update(engine.topology(), engine.sample(provider.base))
            if engine.counted_at > last:
                last = engine.counted_at
                yield last, snapshot
        rig.take_some()
        time.sleep(max(0.0, PERIOD - (time.monotonic() - began)))


def queue_error(queue: Floats, true: Floats) -> dict[str, float]:
    """Return the errors of a queue; where the queue is NaN, the error counts as large."""
    off = np.abs(queue - true)
    return {
        "median_rows": median(off),
        "median_part": median(off / np.maximum(true, 1.0)),
        "large": float(np.mean(~(off <= np.maximum(FEW_ROWS, SMALL_PART * true)))),
        "median_queue": median(true),
    }


def rate_errors(when: Floats, said: Mapping[str, Floats], true: Mapping[str, Floats]) -> dict[str, float]:
    """Return the median relative errors of rate, selectivity and cost, from the counters `in`, `out` and `cpu`."""
    mine, truly = ({key: _grown(when, column) for key, column in each.items()} for each in (said, true))
    return {
        "rate_error": median(_part(mine["in"], truly["in"])),
        "selectivity_error": median(_part(mine["out"] / mine["in"], truly["out"] / truly["in"])),
        "cost_error": median(_part(mine["cpu"] / mine["in"], truly["cpu"] / truly["in"])),
    }


def decided_error(when: Floats, column: Floats, top: Floats, bottom: Floats) -> float:
    """Return the median relative error of a metric for decisions; its true value is growth of `top` : of `bottom`."""
    return median(_part(column, _grown(when, top) / _grown(when, bottom)))


def claims_of(name: str, found: Mapping[str, Any]) -> Claims:
    """Return the claims about a stage or query."""
    made: Claims = []
    if (queue := found["queue_error"]) is not None:
        made.append(at_most(f"{name}: queue, part of moments with a large error", queue["large"], 0.5))
    aims = (("rate_error", 0.02), ("selectivity_error", 0.02), ("age_error_ms", 100.0))
    return made + [at_most(f"{name}: {error}", found[error], aim) for error, aim in aims]


def _grown(when: Floats, column: Floats) -> Floats:
    """Return at each moment the growth of a counter over the last `WINDOW` seconds; NaN if unknown or 0."""
    known = np.isfinite(column)
    if not known.any():
        return np.full(len(when), np.nan)
    before = np.interp(when - WINDOW, when[known], column[known])
    growth = np.where(when - when[known][0] >= WINDOW, column - before, np.nan)
    return np.where(growth > 0.0, growth, np.nan)


def _part(value: Floats, true: Floats) -> Floats:
    return np.abs(value - true) / true


def median(column: Floats) -> float:
    """Return the median of the finite values; NaN if there are none."""
    known = column[np.isfinite(column)]
    return round(float(np.median(known)), 5) if len(known) else float("nan")
