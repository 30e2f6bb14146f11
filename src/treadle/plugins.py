"""What other packages add to Treadle: finds the entry points of a group, loads them, and names the package to blame.

It knows packages and names. What a policy, an engine or a knob is, the registries know that use it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from importlib.metadata import EntryPoint, entry_points

from treadle.errors import ConfigError


def find(group: str, what: str, built_in: Collection[str] = ()) -> dict[str, EntryPoint]:
    """The entry points of a group by name; a name that is taken is refused, which needs no import."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if point.name in built_in:
            raise taken(point, f"its name is already that of {what} of Treadle itself")
        if point.name in found and found[point.name].value != point.value:
            raise taken(point, f"its name is already that of {called(found[point.name])}")
        found[point.name] = point
    return found


def load(point: EntryPoint) -> object:
    """What an entry point names. Whatever a foreign module raises while it is imported is one clear error."""
    try:
        loaded: object = point.load()
    except Exception as error:
        raise failed(called(point), "can't be imported", error) from error
    return loaded


def called(point: EntryPoint) -> str:
    """How an error names a plug-in."""
    package = f" of package '{point.dist.name}'" if point.dist else ""
    return f"plug-in '{point.name}'{package}"


def taken(point: EntryPoint, message: str) -> ConfigError:
    """The error for a name that is there twice."""
    return ConfigError(message, where=called(point), remedy="rename it or uninstall one of the two")


def failed(where: str, message: str, error: Exception) -> ConfigError:
    """The error for what a plug-in raised itself."""
    return ConfigError(f"{message}: {type(error).__name__}: {error}", where=where, remedy="mend or uninstall it")


def suggestion(word: str, known: Iterable[str], none: str = "there is none") -> str:
    """For an error's remedy: the names that are near, or all of them, or `none` where there are no names."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"use one of {', '.join(known)}" if known else none
