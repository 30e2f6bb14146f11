"""Range checks for values of kernel knobs, since the kernel would silently clamp values that are out of range."""

from __future__ import annotations

import math

from treadle.enforce.knob import Value
from treadle.errors import ConfigError


def number(value: Value, low: float, high: float, knob: str) -> float:
    """Return `value` if it is a number from `low` to `high`, else raise a ConfigError."""
    if isinstance(value, str) or math.isnan(value) or not low <= value <= high:
        raise ConfigError(
            f"can't be {value!r}", where=f"knob '{knob}'", remedy=f"use a number from {low:g} to {high:g}"
        )
    return value


def whole(value: Value, low: int, high: int, knob: str) -> int:
    """Return `value` if it is a whole number from `low` to `high`, else raise a ConfigError."""
    checked = number(value, low, high, knob)
    if checked % 1:
        raise ConfigError(f"can't be {value!r}", where=f"knob '{knob}'", remedy="use a whole number")
    return int(checked)
