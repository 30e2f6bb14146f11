"""What accuracy means for somebody's result, as a function of what was kept of its input, and the way back.

Stream-Economics knows one accuracy: the part of the rows. Who wants to know a sum to five percent does not care for
that part, but for the interval in which the sum lies: of many rows few are enough. It knows numbers, and nobody's rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from treadle.durations import Duration, seconds
from treadle.estimates import NORMAL

HALVINGS = 30
"""Of the parts among which the least is searched: to a billionth."""


class Kept(NamedTuple):
    """What a sink has of its input."""

    part: float
    """Of its rows, above 0."""
    rate: float
    """Rows a second that it would have, were nothing dropped."""
    spread: float
    """Of the values of a column: the mean of their squares by the square of their mean. 1 where all are equal."""


Measure = Callable[[Kept], float]
"""The accuracy of a result, 0 to 1: the more is kept, the higher."""


class RelativeError:
    """One minus the relative error of a sum over a window, or of a count, as far as it is known with 95 %.

    Of n rows with values x of which each is kept with probability p the Horvitz-Thompson estimate of their sum has the
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
    """For `accuracy` of a sink: what counts is how well the sum of a column, or the number of rows, is known.

    With `min_accuracy=0.95` the sum over each `window` is right within 5 % in 95 of 100 cases, by `treadle.corrected`.
    """
    return RelativeError(column, seconds(window, what="the window", where="relative_error"))


def least_part(measure: Measure, minimum: float, kept: Kept) -> float:
    """The least part of the rows that gives this accuracy; 1 if no part does."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if measure(kept._replace(part=middle)) >= minimum else (middle, high)
    return high
