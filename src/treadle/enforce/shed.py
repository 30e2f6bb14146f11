"""The knob `keep`: the share of a stream's rows that is kept; the others are dropped (Stream-Economics section 3.2).

The knob writes a table with the share for each stream's name. The engine reads the table and drops the rows.
By default all rows are kept, and a restore returns to that.
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

    A utility or key is the name of a column or an SQL expression of columns. With a utility, the probability that a row
    is kept is proportional to its absolute value, and a row of utility +infinity is never dropped. With a key, all rows
    with the same value are kept or none of them, as joins need it.
    """

    utility: str | None = None
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.utility is not None and self.key:
            raise ConfigError("can't use both a utility and a key", where="shed", remedy="give one of them")


def by_utility(utility: str) -> Choice:
    """Keep a row with a probability proportional to this column or expression; always if it is infinity, NULL or NaN.

    A negative utility counts by its absolute value, as a refund does in a sum; minus infinity counts as 0. Every row
    has a chance: the probability is never below a tenth of the share of the stream's rows that is to be kept.
    """
    if not isinstance(utility, str) or not utility.strip():
        remedy = "name a column, as by_utility('amount'); to drop any rows, leave shed out"
        raise ConfigError(f"by_utility({utility!r}) names no column", where="shed", remedy=remedy)
    return Choice(utility=utility)


def by_key(*key: str) -> Choice:
    """Keep all rows with the same values in these columns or expressions, or none of them."""
    if not key or not all(isinstance(each, str) and each.strip() for each in key):
        remedy = "name the columns, as by_key('card'); to drop any rows, leave shed out"
        raise ConfigError(
            f"by_key{key!r} has an empty name" if key else "by_key() names no column", where="shed", remedy=remedy
        )
    return Choice(key=key)


class Count(NamedTuple):
    """Numbers of rows of a stream so far: `seen` rows were checked, and `kept` of them were not dropped."""

    seen: int
    kept: int

    def since(self, before: Count) -> Count:
        return Count(self.seen - before.seen, self.kept - before.kept)

    @property
    def part(self) -> float:
        """The share of the checked rows that was kept; 1 if there were no rows."""
        return min(self.kept / self.seen, EVERYTHING) if self.seen else EVERYTHING


class Table(Protocol):
    """The share of rows to keep for each stream. The engine reads this share for each row, and counts the rows."""

    def get(self, stream: str, /) -> float: ...

    def set(self, stream: str, keep: float, /) -> None: ...

    def counts(self) -> Mapping[str, Count]: ...


class ShedKnob:
    """Sets the share of a stream's rows that is kept, for all its readers. The targets are groups: names of streams."""

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
