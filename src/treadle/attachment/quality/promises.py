"""Reads and checks the promises for running queries: by patterns of query names, from a file or a mapping.

`keeper` keeps the promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from treadle import toml
from treadle.decide.quality import Promise
from treadle.errors import ConfigError

Given = str | Path | Mapping[str, Mapping[str, float]]
"""The path of a TOML file, or a mapping like the table `queries` of such a file."""
ALL = Promise(0.0, 1.0)
"""The promise of a query that no pattern matches: nothing of it is dropped."""
_KEYS = ("priority", "min_accuracy")
_EXAMPLE = 'queries."enrich-*" = { priority = 1, min_accuracy = 0.2 }'


def read(given: Given) -> dict[str, Promise]:
    """Return the promises by pattern, in the order given."""
    if isinstance(given, Mapping):
        return _checked(given, "qod")
    where = str(given)
    data = toml.read(Path(given))
    if others := data.keys() - {"queries"}:
        raise ConfigError(f"unknown key '{min(others)}'", where=where, remedy=f"write {_EXAMPLE}")
    queries = data.get("queries", {})
    if not isinstance(queries, Mapping) or not queries:
        raise ConfigError("contains no promise", where=where, remedy=f"write {_EXAMPLE}")
    return _checked(queries, where)


def of(name: str, promises: Mapping[str, Promise]) -> Promise:
    """Return the promise of this query: that of the first pattern that matches."""
    return next((promise for pattern, promise in promises.items() if fnmatchcase(name, pattern)), ALL)


def _checked(given: Mapping[str, Any], where: str) -> dict[str, Promise]:
    found = {pattern: checked(f"{where}, query '{pattern}'", said) for pattern, said in given.items()}
    if not any(promise.accuracy < 1.0 for promise in found.values()):
        remedy = "give at least one query a min_accuracy below 1, or leave out --qod (qod)"
        raise ConfigError("every query must keep all of its rows", where=where, remedy=remedy)
    return found


def checked(where: str, said: object) -> Promise:
    """Return a promise that is given as a mapping of `priority` and `min_accuracy`."""
    if not isinstance(said, Mapping):
        raise ConfigError(f"is {said!r}", where=where, remedy=f"write {_EXAMPLE}")
    for key in said:
        if key not in _KEYS:
            raise ConfigError(f"unknown key '{key}'", where=where, remedy=f"known here: {', '.join(_KEYS)}")
    for key, remedy in zip(
        _KEYS, ("add a number; the lowest drops rows first", "add the least part of its rows, 0 to 1"), strict=True
    ):
        if key not in said:
            raise ConfigError(f"has no {key}", where=where, remedy=remedy)
        if isinstance(said[key], bool) or not isinstance(said[key], int | float) or not abs(said[key]) < 1e300:
            raise ConfigError(f"{key} is {said[key]!r}", where=where, remedy="give a number")
    if not 0.0 <= said["min_accuracy"] <= 1.0:
        remedy = "give a number from 0 to 1, as 0.9"
        raise ConfigError(f"min_accuracy is {said['min_accuracy']!r}", where=where, remedy=remedy)
    return Promise(float(said["priority"]), float(said["min_accuracy"]))
