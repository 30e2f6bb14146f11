"""Claims of benchmarks: statements about a default, named before the measurement, and whether they hold.

A claim with a missing figure, because a variant died or the figure is NaN, does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Claims = list[dict[str, Any]]
Figure = float | Callable[[], float]
"""A number, or a function that computes one from figures that may be missing."""
DIED, SET_UP = "died", "setting up"
"""In a benchmark's figures, the key of the errors of variants that died; and the name for errors before any variant."""


def at_least(claim: str, measured: Figure, aim: float) -> dict[str, Any]:
    """Return a claim that a figure is `aim` or more."""
    value = _value(measured)
    return _made(claim, f"at least {aim:g}", value, value >= aim)


def at_most(claim: str, measured: Figure, aim: float) -> dict[str, Any]:
    """Return a claim that a figure is `aim` or less."""
    value = _value(measured)
    return _made(claim, f"at most {aim:g}", value, value <= aim)


def fails(figures: Mapping[str, Any]) -> bool:
    """Return whether a claim of a benchmark does not hold, or a variant died."""
    return bool(figures.get(DIED)) or not all(each["holds"] for each in figures.get("claims", ()))


class Deaths(dict[str, str]):
    """By variant that died: its error. What was measured before is kept."""

    @contextmanager
    def noted(self, variant: str) -> Iterator[None]:
        """Record any error of this block as the death of the variant."""
        try:
            yield
        except Exception as error:
            self[variant] = " ".join(f"{type(error).__name__}: {error}".split())

    def figures(self) -> dict[str, Any]:
        """Return the entry for a benchmark's figures; empty if no variant died."""
        return {DIED: dict(self)} if self else {}


def in_turns(
    names: Sequence[str], repetitions: int, measure: Callable[[str, int], None], deaths: Deaths, *, stop: bool = False
) -> None:
    """Measure all variants in turns, `repetitions` times, so that other load on the machine affects all alike.

    A variant that dies gets no further turns. With `stop`, no other variant gets any, either: use this if all variants
    share an application, which the dead variant may have left stalled.
    """
    for number in range(repetitions * len(names)):
        name = names[number % len(names)]
        if name not in deaths and not (stop and deaths):
            with deaths.noted(name):
                measure(name, number)


def _value(measured: Figure) -> float:
    try:
        return float(measured() if callable(measured) else measured)
    except (KeyError, ZeroDivisionError):
        return math.nan


def _made(claim: str, aim: str, value: float, holds: bool) -> dict[str, Any]:
    return {"claim": claim, "aim": aim, "measured": None if math.isnan(value) else round(value, 4), "holds": holds}
