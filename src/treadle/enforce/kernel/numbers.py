"""Range checks for values of kernel knobs. The kernel would silently cut values that are out of range."""

from __future__ import annotations

import math

from treadle.enforce.knob import Value
from treadle.errors import ConfigError


def number(value: Value, low: float, high: float, knob: str) -> float:
    """Check for a number from `low` to `high`."""
    if isinstance(value, str) or math.isnan(value) or not low <= value <= high:
        raise ConfigError(
            f"can't be {value!r}", where=f"knob '{knob}'", remedy=f"use a number from {low:g} to {high:g}"
        )
    return value


def whole(value: Value, low: int, high: int, knob: str) -> int:
    """Check for a whole number from `low` to `high`."""
    checked = number(value, low, high, knob)
    if checked % 1:
        raise ConfigError(f"can't be {value!r}", where=f"knob '{knob}'", remedy="use a whole number")
    return int(checked)
