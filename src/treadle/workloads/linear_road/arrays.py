"""Rows as numpy arrays with named fields, and the end of minutes in them.

A row in an array has no null: -1 or NaN stand for it. `created` is in microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]
Kind = np.dtype[Any]
Key = tuple[Any, ...]
"""Expressway and direction."""
Clock = tuple[int, int]
"""Minute and time of the last report."""

_CAUSE = [("id", "i8"), ("created", "i8"), ("minute", "i4")]
REPORT: Kind = np.dtype(
    [*_CAUSE, ("time", "i4"), ("vid", "i4"), ("speed", "i4"), ("seg", "i4"), ("lane", "i4"), ("pos", "i4")]
)
AVERAGE: Kind = np.dtype([*_CAUSE, ("seg", "i4"), ("vid", "i4"), ("speed", "i4"), ("closing", "i4")])
LAV: Kind = np.dtype([*_CAUSE, ("seg", "i4"), ("lav", "f8"), ("closing", "i4")])
COUNT: Kind = np.dtype([*_CAUSE, ("seg", "i4"), ("count", "i4"), ("closing", "i4")])
NOTICE: Kind = np.dtype(
    [*_CAUSE, ("kind", "i4"), ("seg", "i4"), ("lav", "f8"), ("count", "i4"), ("toll", "i8"), ("vid", "i4"),
     ("time", "i4"), ("speed", "i4"), ("lane", "i4"), ("pos", "i4")]
)  # fmt: skip
"""A notification; its kind is a position in `rules.KINDS`, counted from 1."""


def none(kind: Kind) -> Rows:
    """No rows."""
    return np.empty(0, kind)


def filled(kind: Kind, number: int, /, **given: Any) -> Rows:
    """So many rows of these columns; the others are -1 or NaN."""
    found = np.empty(number, kind)
    for name in kind.names or ():
        nothing = np.nan if found[name].dtype.kind == "f" else -1
        found[name] = given.get(name, nothing)
    return found


def columns(rows: Rows, *names: str) -> dict[str, Any]:
    """Some columns of rows, or of one row, by name."""
    return {name: rows[name] for name in names}


def in_order(*parts: Rows) -> Rows:
    """The rows of all parts, in the order of ids."""
    rows = np.concatenate(parts)
    found: Rows = rows[np.argsort(rows["id"], kind="stable")]
    return found


def changes(*values: NDArray[Any]) -> NDArray[np.bool_]:
    """For each row whether it is the first, or one of the columns differs from the row before."""
    found = np.ones(len(values[0]), bool)
    found[1:] = np.any([column[1:] != column[:-1] for column in values], axis=0)
    return found


def by_minutes(reports: Rows, clock: Clock | None) -> Iterator[tuple[Rows, int | None]]:
    """Split the reports of one direction where minutes end, also where time goes back.

    Each part comes with the minute that its first report ends; None for the part that continues the minute of `clock`,
    and for the first part of all.
    """
    if not len(reports):
        return
    minute, time = clock or (reports["minute"][0], reports["time"][0])
    minutes = np.append(minute, reports["minute"][:-1])
    times = np.append(time, reports["time"][:-1])
    ends = (reports["minute"] != minutes) | (reports["time"] < times)
    for first, end in pairwise([0, *np.flatnonzero(ends).tolist(), len(reports)]):
        if first < end:
            yield reports[first:end], int(minutes[first]) if ends[first] else None


def clock_of(reports: Rows, before: Clock | None = None) -> Clock | None:
    """Minute and time of the last of some reports; `before` if there are none."""
    return (int(reports["minute"][-1]), int(reports["time"][-1])) if len(reports) else before
