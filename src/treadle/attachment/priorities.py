"""Checks numbers that users give by patterns of query names."""

from __future__ import annotations

import math
from collections.abc import Mapping

from treadle.errors import ConfigError

ORDINARY = 1.0
"""The priority of a query that no pattern matches."""


def checked(what: str, numbers: Mapping[str, float], least: float) -> dict[str, float]:
    """Return the numbers, or raise a ConfigError if one is no number or too small."""
    for pattern, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number < math.inf:
            remedy = f"use a number of at least {least:g}, as {{'alerts-*': 10}}"
            raise ConfigError(f"{pattern!r} can't be {number!r}", where=what, remedy=remedy)
    return dict(numbers)


def with_default(priorities: Mapping[str, float]) -> dict[str, float]:
    """Return the priorities with one for all queries that no pattern matches."""
    return {**priorities, "*": priorities.get("*", ORDINARY)}
