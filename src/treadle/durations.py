"""Converts durations as people write them (`500ms`, `1s`, `2min`, `1h 30min`) to seconds and back.

It knows units only. The caller passes what a duration is for, so that errors can name it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta

from treadle.errors import ConfigError

Duration = str | float | timedelta

_UNITS = {
    "us": 1e-6,
    "µs": 1e-6,
    "microsecond": 1e-6,
    "ms": 1e-3,
    "msec": 1e-3,
    "millisecond": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}
_PART = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-zµ]*)\s*", re.ASCII)
_REMEDY = "write it as '500ms', '1s', '2min' or as a number of seconds"


@dataclass(frozen=True)
class Backoff:
    """Pauses between retries: they double, from `first` up to `longest` seconds."""

    first: float
    longest: float

    def pause(self, failures: int) -> float:
        """Return the pause in seconds after this number (1 or more) of consecutive failures."""
        return min(self.first * 2.0 ** min(failures - 1, 60), self.longest)


def seconds(value: Duration, *, what: str = "the duration", where: str = "", least: float = 0.0) -> float:
    """Return a duration in seconds, from text with units, a number of seconds, or a timedelta.

    It must be above zero, and no shorter than `least`.
    """
    if isinstance(value, timedelta):
        length = value.total_seconds()
    elif isinstance(value, str):
        length = _parse(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        length = float(value)
    else:
        length = math.nan
    if math.isnan(length):
        raise ConfigError(f"{what} is not a duration: {value!r}", where=where, remedy=_REMEDY)
    if not 0 < length < math.inf:
        raise ConfigError(f"{what} must be above zero and finite, not {value!r}", where=where, remedy=_REMEDY)
    if length < least:
        raise ConfigError(f"{what} is too short: {value!r}", where=where, remedy=f"use {text(least)} or longer")
    return length


def text(length: float) -> str:
    """Return a number of seconds as a person would write it, with four digits at most: `1.5s`, `250ms`, `2min`."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        # Only if the division leaves no remainder: 90s is clearer than 1.5min.
        if length >= size and length % size == 0:
            return f"{length / size:.15g}{unit}"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if length >= size:
            return f"{_digits(length / size)}{unit}"
    return f"{_digits(length / 1e-6)}us"


def _parse(written: str) -> float:
    """Return the sum of all parts, NaN if one is invalid. A number without unit means seconds if it stands alone."""
    total, position = 0.0, 0
    while position < len(written):
        part = _PART.match(written, position)
        if part is None:
            return math.nan
        number, unit = part.groups()
        alone = part.end() - part.start() == len(written)
        size = _UNITS.get(unit.lower(), _UNITS.get(unit.lower().removesuffix("s"), math.nan)) if unit else math.nan
        total += float(number) * (1.0 if not unit and alone else size)
        position = part.end()
    return total if written.strip() else math.nan


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 1000 else f"{number:.4g}"
