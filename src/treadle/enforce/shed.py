"""The knob `keep`: the part of a stream's rows that goes on, the rest is dropped (Stream-Economics section 3.2).

It knows streams by name and a table that says how much of each is kept; how rows are dropped is the engine's business.
Left alone, everything is kept: that is what is restored.
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
    """Which rows go first: any (the default), those of least `utility`, or all of some `key`.

    Each is the name of a column or an expression of columns in SQL. With a utility rows are kept in proportion to its
    size; one of infinity is never dropped. With a key all rows of a value are kept or none, as joins need it.
    """

    utility: str | None = None
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.utility is not None and self.key:
            raise ConfigError("shedding is by utility or by key", where="shed", remedy="give one of them")


def by_utility(utility: str) -> Choice:
    """Rows are kept in proportion to the size of this column or expression; where it is infinity, NULL or NaN, always.

    A negative utility counts by its size, as a refund does in a sum. No row is without a chance: also with a utility of
    0 or minus infinity it is kept with at least a tenth of the part that is kept of the stream.
    """
    if not isinstance(utility, str) or not utility.strip():
        remedy = "name a column, as by_utility('amount'); to drop any rows, leave shed out"
        raise ConfigError(f"by_utility({utility!r}) names no utility", where="shed", remedy=remedy)
    return Choice(utility=utility)


def by_key(*key: str) -> Choice:
    """All rows with the same values in these columns or expressions are kept, or none of them."""
    if not key or not all(isinstance(each, str) and each.strip() for each in key):
        remedy = "name the columns, as by_key('card'); to drop any rows, leave shed out"
        raise ConfigError(f"by_key{key!r} names no key" if key else "by_key() has no key", where="shed", remedy=remedy)
    return Choice(key=key)


class Count(NamedTuple):
    """Rows of a stream so far: those that came to where it is decided, and those that went on."""

    seen: int
    kept: int

    def since(self, before: Count) -> Count:
        return Count(self.seen - before.seen, self.kept - before.kept)

    @property
    def part(self) -> float:
        """The achieved part; everything, where nothing came."""
        return min(self.kept / self.seen, EVERYTHING) if self.seen else EVERYTHING


class Table(Protocol):
    """Where it is decided for each row."""

    def get(self, stream: str, /) -> float: ...

    def set(self, stream: str, keep: float, /) -> None: ...

    def counts(self) -> Mapping[str, Count]: ...


class ShedKnob:
    """Per group: a stream is known by its name, whoever reads it."""

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
