"""What an application has counted itself (`workloads/java/treadle/tap/Tap.java`), and how far other counts are off."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from treadle.model import Floats

Progress = Callable[[str, float], None]
WINDOW = 2.0
"""Seconds over which rates, selectivities and costs are compared."""
FEW_ROWS, SMALL_PART = 20.0, 0.05
"""An error of a queue that is one of these is small."""


class Taps(NamedTuple):
    """What the application has counted: at these times, by place, all partitions together."""

    times: Floats
    rows: Mapping[str, Floats]
    created: Mapping[str, Floats]
    """When the last row was made, on the same clock; of several partitions the one that is furthest behind."""
    cpu: Mapping[str, Floats]

    def at(self, what: Mapping[str, Floats], place: str, when: Floats) -> Floats:
        return np.interp(when, self.times, what[place])


def read_taps(file: Path) -> Taps:
    """The whole file; a place that is not there yet has counted nothing."""
    wall = time.time() - time.monotonic()
    lines = [line.split("\t") for line in file.read_text().splitlines()[:-1]]
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


def grown(when: Floats, column: Floats) -> Floats:
    """By how much it has grown over each window."""
    known = np.isfinite(column)
    if not known.any():
        return np.full(len(when), np.nan)
    before = np.interp(when - WINDOW, when[known], column[known])
    growth = np.where(when - when[known][0] >= WINDOW, column - before, np.nan)
    return np.where(growth > 0.0, growth, np.nan)


def part(value: Floats, true: Floats) -> Floats:
    """By which part of the true one a value is wrong."""
    return np.abs(value - true) / true


def median(column: Floats) -> float:
    """Of what is known."""
    known = column[np.isfinite(column)]
    return round(float(np.median(known)), 5) if len(known) else float("nan")
