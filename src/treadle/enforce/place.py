"""The knob `place`: the workers of a cluster on which a query runs (Stream-Economics section 4).

The knob writes a table that has, for the id of each query, the ids of its workers. The engine applies the table.
By default a query may run on any worker, and a restore returns to that.
"""

from __future__ import annotations

from typing import Protocol

from treadle.enforce.knob import Per, Target, Value, label
from treadle.errors import ConfigError


class Places(Protocol):
    """The table that an engine reads when it assigns work to workers."""

    def get(self, query: str, /) -> str: ...

    def set(self, query: str, worker: str, /) -> None: ...


class PlaceKnob:
    """Sets the workers of a query, as ids separated by commas. The targets are groups: the ids of queries."""

    name = "place"
    per: Per = "group"

    def __init__(self, places: Places) -> None:
        self._places = places

    def read(self, target: Target) -> Value:
        return self._places.get(label(target))

    def write(self, target: Target, value: Value) -> None:
        if not isinstance(value, str):
            raise ConfigError(
                f"can't be {value!r}", where=f"knob '{self.name}'", remedy="use ids of workers, separated by commas"
            )
        self._places.set(label(target), value)
