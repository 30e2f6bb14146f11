"""Changes as values: the wanted settings that differ from the current ones. Nothing here reads or writes the system.

Changes are held as columns and become objects only when they are iterated, so a quiet round costs only numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from treadle.enforce.knob import Target, Value
from treadle.errors import ConfigError
from treadle.model import Bools, Floats, Ints

Column = Floats | NDArray[np.object_]
"""One value for each target: numbers with NaN for unknown, or texts with None for unknown."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a setting. `before` is None if it could not be read."""

    target: Target
    knob: str
    before: Value | None
    after: Value


class Changes(Sequence[Change]):
    """The changes of one knob. `rows` are indexes into `targets`; `before` and `after` have a value for each row."""

    __slots__ = ("after", "before", "knob", "rows", "targets")

    def __init__(self, knob: str, targets: Sequence[Target], rows: Ints, before: Column, after: Column) -> None:
        self.knob = knob
        self.targets = targets
        self.rows = rows
        self.before = before
        self.after = after

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> Changes: ...
    def __getitem__(self, index: int | slice) -> Change | Changes:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        return next(iter(self.take(np.array([range(len(self))[index]]))))

    def __iter__(self) -> Iterator[Change]:
        for row, before, after in zip(self.rows.tolist(), self.before.tolist(), self.after.tolist(), strict=True):
            known = None if before is None or before != before else before
            yield Change(self.targets[row], self.knob, known, after)

    def __repr__(self) -> str:
        return f"Changes({self.knob!r}, {list(self)!r})"

    def take(self, which: Ints) -> Changes:
        """Return only the changes at these positions."""
        return Changes(self.knob, self.targets, self.rows[which], self.before[which], self.after[which])

    def alone(self) -> Changes:
        """Return the same changes without targets that do not change. This saves memory if they are kept for long."""
        targets = [self.targets[row] for row in self.rows.tolist()]
        return Changes(self.knob, targets, np.arange(len(targets)), self.before, self.after)


def diff(targets: Sequence[Target], wanted: Column, current: Column, *, knob: str = "") -> Changes:
    """Return the changes where `wanted` is known and differs from `current`."""
    if not len(targets) == len(wanted) == len(current):
        raise ConfigError(
            f"{len(wanted)} wanted and {len(current)} current values for {len(targets)} targets",
            where=f"knob '{knob}'",
            remedy="give one for each",
        )
    rows = (wanted != current).nonzero()[0]
    after = wanted[rows]
    if not complete(after):
        rows = rows[~missing(after)]
        after = wanted[rows]
    return Changes(knob, targets, rows, current[rows], after)


def missing(column: Column) -> Bools:
    """Return a mask of the values that are unknown."""
    if column.dtype == np.object_:
        return np.asarray(np.equal(column, _NONE), dtype=np.bool_)
    return np.isnan(column.astype(np.float64, copy=False))


def complete(column: Column) -> bool:
    """Return whether all values are known. numpy's `argmin` returns the index of a NaN if there is one."""
    if column.dtype == np.object_:
        return not missing(column).any()
    return not len(column) or not math.isnan(column[column.argmin()])


def column_of(values: Sequence[Value | None], like: Column) -> Column:
    """Return values as a column of the same kind as `like`; None means unknown."""
    if like.dtype == np.object_:
        return np.array(values, dtype=np.object_)
    return np.array(values, dtype=np.float64)


def same(one: Value, other: Value) -> bool:
    """Return whether two values are equal or both NaN: a knob may use NaN for 'not set'."""
    return one == other or (one != one and other != other)


_NONE = np.array(None, dtype=np.object_)
