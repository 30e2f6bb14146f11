"""Plug-ins of other packages: finds the entry points of a group, loads them, and names the package in errors.

Objects that a user names as `module:name` are imported here, too. It knows packages and names only. The registries of
policies, engines and knobs, which use it, check what was loaded.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Collection, Iterable
from importlib.metadata import EntryPoint, entry_points

from treadle.errors import ConfigError


def find(group: str, what: str, built_in: Collection[str] = ()) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, without importing them; raise a ConfigError if a name is taken."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if point.name in built_in:
            raise taken(point, f"its name is already that of {what} of Treadle itself")
        if point.name in found and found[point.name].value != point.value:
            raise taken(point, f"its name is already that of {called(found[point.name])}")
        found[point.name] = point
    return found


def load(point: EntryPoint) -> object:
    """Import the object that an entry point names. Any exception during the import becomes a ConfigError."""
    try:
        loaded: object = point.load()
    except Exception as error:
        raise failed(called(point), "can't be imported", error) from error
    return loaded


def imported(spec: str) -> object:
    """Import the object that `module:name` names. The current folder is searched too, after all others."""
    module, _, name = spec.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        remedy = "check its name, and run where it can be imported"
        raise ConfigError(f"can't be imported: {type(error).__name__}: {error}", where=spec, remedy=remedy) from error


def called(point: EntryPoint) -> str:
    """Return how error messages name a plug-in."""
    package = f" of package '{point.dist.name}'" if point.dist else ""
    return f"plug-in '{point.name}'{package}"


def taken(point: EntryPoint, message: str) -> ConfigError:
    """Return the error for a name that is already taken."""
    return ConfigError(message, where=called(point), remedy="rename it or uninstall one of the two")


def failed(where: str, message: str, error: Exception) -> ConfigError:
    """Return the error for an exception that a plug-in has raised."""
    return ConfigError(f"{message}: {type(error).__name__}: {error}", where=where, remedy="fix or uninstall it")


def suggestion(word: str, known: Iterable[str], none: str = "there is none") -> str:
    """Return the remedy for an unknown name: similar names, or all known ones, or `none` if there are none."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"use one of {', '.join(known)}" if known else none
