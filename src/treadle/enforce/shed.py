"""The knob `keep`: the part of a stream's rows that is kept; the rest is dropped (Stream-Economics section 3.2).

It writes a table with the part kept of each stream, by name; the engine drops the rows.
By default everything is kept, and restoring returns to that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from treadle.enforce.knob import Per, Target, Value, label
from treadle.errors import ConfigError

EVERYTHING = 1.0


@dataclass(frozen=True)
class Choice:
    """Which rows are dropped first: any (the default), rows of the least `utility`, or all rows of some `key` values.

    Each is the name of a column or an SQL expression of columns. With a utility, rows are kept in proportion to its
    size, and a row of utility +infinity is never dropped. With a key, all rows of a value are kept or none, for joins.
    """

    utility: str | None = None
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.utility is not None and self.key:
            raise ConfigError("shedding is by utility or by key", where="shed", remedy="give one of them")


def by_utility(utility: str) -> Choice:
    """Keep rows in proportion to the size of this column or expression; always where it is infinity, NULL or NaN.

    A negative utility counts by its absolute value, as a refund does in a sum. Every row may be kept: also with a
    utility of 0 or minus infinity, the probability is at least a tenth of the part to keep of the stream.
    """
    if not isinstance(utility, str) or not utility.strip():
        remedy = "name a column, as by_utility('amount'); to drop any rows, leave shed out"
        raise ConfigError(f"by_utility({utility!r}) names no utility", where="shed", remedy=remedy)
    return Choice(utility=utility)


def by_key(*key: str) -> Choice:
    """Keep all rows with the same values in these columns or expressions, or none of them."""
    if not key or not all(isinstance(each, str) and each.strip() for each in key):
        remedy = "name the columns, as by_key('card'); to drop any rows, leave shed out"
        raise ConfigError(f"by_key{key!r} names no key" if key else "by_key() has no key", where="shed", remedy=remedy)
    return Choice(key=key)


class Count(NamedTuple):
    """Rows of a stream so far: rows that were checked, and rows that were kept."""

    seen: int
    kept: int

    def since(self, before: Count) -> Count:
        return Count(self.seen - before.seen, self.kept - before.kept)

    @property
    def part(self) -> float:
        """The part that was kept; 1 if there were no rows."""
        return min(self.kept / self.seen, EVERYTHING) if self.seen else EVERYTHING


class Table(Protocol):
    """The parts to keep of streams, by which the engine decides for each row."""

    def get(self, stream: str, /) -> float: ...

    def set(self, stream: str, keep: float, /) -> None: ...

    def counts(self) -> Mapping[str, Count]: ...


class ShedKnob:
    """Sets the part kept of a stream. Its targets are groups: the names of streams, for all readers."""

    name = "keep"
    per: Per = "group"

    def __init__(self, table: Table) -> None:
        self._table = table

    def read(self, target: Target) -> Value:
        return self._table.get(label(target))

    def write(self, target: Target, value: Value) -> None:
        if isinstance(value, str) or not 0.0 <= value <= EVERYTHING:
            raise ConfigError(f"can't be {value!r}", where=f"knob '{self.name}'", remedy="use a number from 0 to 1")
        self._table.set(label(target), float(value))
