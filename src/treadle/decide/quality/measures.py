"""Measures of accuracy: functions of the share of the input that is kept, and their inverse.

Stream-Economics has one accuracy: that share. A user who wants a sum to within five percent cares about the confidence
interval of the sum instead: of many rows, a small share is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from treadle.durations import Duration, seconds
from treadle.estimates import NORMAL

HALVINGS = 30
"""Steps of the bisection for the least part: precise to a billionth."""


class Kept(NamedTuple):
    """What a measure needs to know about the input of a sink."""

    part: float
    """Share of the rows that is kept, above 0."""
    rate: float
    """Rows per second if nothing were dropped."""
    spread: float
    """Mean square of a column's values divided by the square of their mean; 1 where all are equal."""


Measure = Callable[[Kept], float]
"""A function that returns the accuracy of a result, 0 to 1; it must rise with the share that is kept."""


class RelativeError:
    """One minus the relative error, at 95 % confidence, of a sum or a count over a window.

    If each of n rows with values x is kept with probability p, the Horvitz-Thompson estimate of their sum has the
    variance (1 - p) / p times the sum of x^2.
    """

    def __init__(self, column: str | None, window: float) -> None:
        self.column = column
        self.window = window

    def __call__(self, kept: Kept) -> float:
        if kept.part >= 1.0:
            return 1.0
        rows = kept.rate * self.window
        if rows <= 0.0 or kept.part <= 0.0:
            return 0.0
        return max(0.0, 1.0 - NORMAL * math.sqrt((1.0 - kept.part) / kept.part * kept.spread / rows))


def relative_error(column: str | None = None, *, window: Duration = "60s") -> RelativeError:
    """Return a measure for `accuracy` of a sink: how exactly a column's sum, or the number of rows, is known.

    With `min_accuracy=0.95` the sum over each `window`, from `treadle.corrected`, is right within 5 % in 95 of 100
    cases.
    """
    return RelativeError(column, seconds(window, what="the window", where="relative_error"))


def least_part(measure: Measure, minimum: float, kept: Kept) -> float:
    """Return the least share of the rows with which `measure` is at least `minimum`; 1 if no share is enough."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if measure(kept._replace(part=middle)) >= minimum else (middle, high)
    return high
