"""What a metric is: a name, what kind of feature it is, and the ways to derive it from others.

Base metrics have no ways and must be offered by an engine. Haren section 3.1 gives the kinds of features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import NamedTuple

from treadle.model import Floats, Topology


class Kind(Flag):
    """Haren's kinds of features. A metric with none of the last three changes only when its own operator runs."""

    STATIC = 0
    DYNAMIC = auto()
    ON_UPSTREAM = auto()
    """Dependent: changes when an upstream operator runs."""
    ON_DOWNSTREAM = auto()
    """Dependent: changes when a downstream operator runs."""
    INTRINSIC = auto()
    """Execution-intrinsic: can be measured only while its operator runs, and goes stale while it does not."""


class Inputs(NamedTuple):
    """What a formula may use: this round's columns, the last round's, and the seconds between the two."""

    topology: Topology
    now: Mapping[str, Floats]
    before: Mapping[str, Floats]
    """Empty in the first round; NaN for rows that are new."""
    seconds: float
    """NaN in the first round."""
    kept: dict[str, Floats]
    """What formulas keep from one round to the next, by names of their own; NaN for rows that are new."""


Formula = Callable[[Inputs], Floats]


@dataclass(frozen=True)
class Way:
    """One way to get a metric from others."""

    needs: tuple[str, ...]
    formula: Formula


@dataclass(frozen=True)
class Metric:
    """A column of a snapshot. With several ways, an earlier one is preferred."""

    name: str
    unit: str
    help: str
    kind: Kind = Kind.DYNAMIC
    ways: tuple[Way, ...] = ()
    smooth: bool = False
    """True for a metric that is noisy from round to round: it is smoothed by a time-aware EMA (`observe/smooth.py`)."""
