"""The knob `place`: the workers of a cluster on which a query runs (Stream-Economics section 4).

It knows queries and workers by their ids and a table that says who is where; how an engine keeps to it is its business.
Left alone, a query is anywhere: that is what is restored.
"""

from __future__ import annotations

from typing import Protocol

from treadle.enforce.knob import Per, Target, Value, label
from treadle.errors import ConfigError


class Places(Protocol):
    """Where it is looked up when work is given out."""

    def get(self, query: str, /) -> str: ...

    def set(self, query: str, worker: str, /) -> None: ...


class PlaceKnob:
    """Per group: a query is known by its id, whatever of it runs."""

    name = "place"
    per: Per = "group"

    def __init__(self, places: Places) -> None:
        self._places = places

    def read(self, target: Target) -> Value:
        return self._places.get(label(target))

    def write(self, target: Target, value: Value) -> None:
        if not isinstance(value, str):
            raise ConfigError(
                f"can't be {value!r}", where=f"knob '{self.name}'", remedy="use ids of workers, by a comma"
            )
        self._places.set(label(target), value)
