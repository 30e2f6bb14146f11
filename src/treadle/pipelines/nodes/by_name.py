"""Numbers that users give by names of nodes, or by patterns of names, while a pipeline runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from treadle.errors import ConfigError
from treadle.plugins import suggestion


def by_name(given: Mapping[str, float], names: Collection[str], what: str, where: str) -> dict[str, float]:
    """Return the number of each name that a pattern matches; the first pattern that matches counts.

    A pattern that matches no name raises a ConfigError.
    """
    found: dict[str, float] = {}
    for pattern, number in given.items():
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise ConfigError(f"{what}: there is no '{pattern}'", where=where, remedy=suggestion(pattern, names))
        for name in matched:
            found.setdefault(name, number)
    return found
