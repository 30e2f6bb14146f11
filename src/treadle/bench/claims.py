"""Claims of benchmarks: what ought to hold of a default that was named beforehand, and whether it does.

A claim whose figure is missing, because a variant died or a figure is no number, does not hold. It knows figures, and
nothing of how they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Claims = list[dict[str, Any]]
Figure = float | Callable[[], float]
"""A number, or how to compute one from figures that may be missing."""
DIED, SET_UP = "died", "setting up"
"""Where a benchmark's figures say which variants died, and of what; the name of what comes before all variants."""


def at_least(claim: str, measured: Figure, aim: float) -> dict[str, Any]:
    """What must be so much or more."""
    value = _value(measured)
    return _made(claim, f"at least {aim:g}", value, value >= aim)


def at_most(claim: str, measured: Figure, aim: float) -> dict[str, Any]:
    """What must be so much or less."""
    value = _value(measured)
    return _made(claim, f"at most {aim:g}", value, value <= aim)


def fails(figures: Mapping[str, Any]) -> bool:
    """Whether a benchmark has found a claim that does not hold, or a variant that died."""
    return bool(figures.get(DIED)) or not all(each["holds"] for each in figures.get("claims", ()))


class Deaths(dict[str, str]):
    """By variant what it died of. What was measured before stays."""

    @contextmanager
    def noted(self, variant: str) -> Iterator[None]:
        """Any error of this block is the variant's death."""
        try:
            yield
        except Exception as error:
            self[variant] = " ".join(f"{type(error).__name__}: {error}".split())

    def figures(self) -> dict[str, Any]:
        """For the figures of a benchmark: nothing where nothing died."""
        return {DIED: dict(self)} if self else {}


def in_turns(
    names: Sequence[str], repetitions: int, measure: Callable[[str, int], None], deaths: Deaths, *, stop: bool = False
) -> None:
    """Measure each so often, one after the other, so that what the machine does meanwhile affects all alike.

    A variant that dies has no further turn. With `stop` no other has one either: for variants that share an
    application, which one that died may have left stalled.
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
