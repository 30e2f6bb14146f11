"""The settings of something that runs: read, changed and remembered while it runs.

Several settings can be changed at once: all new values are checked before the first one is set, so a change with a
wrong value changes nothing. This module knows names and JSON values, not what the settings do.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

from treadle import durations
from treadle.control.control_socket import caller
from treadle.errors import ConfigError
from treadle.plugins import suggestion

log = logging.getLogger("treadle.control")

MOST = 1000
"""Changes that are remembered."""
LARGEST = 1e300
"""The largest number that `numbers` accepts: sums of a few such numbers are still finite."""


class Setting(NamedTuple):
    """One setting."""

    read: Callable[[], Any]
    """Return the current value; None if the setting does not apply now."""
    prepare: Callable[[Any], Callable[[], None]]
    """Check a value and return the function that sets it, or raise a TreadleError. That function must not fail."""
    becomes: Callable[[Any], Any] | None = None
    """Return what `read` would return after a checked value was set, for dry runs; None: the value itself."""

    def after(self, value: Any) -> Any:
        """Return what `read` would return after this checked value was set."""
        return value if self.becomes is None else self.becomes(value)

    apart: tuple[str, ...] = ()
    """Settings that can't be changed by the same command, since they replace what this one belongs to."""


class Changeable:
    """The methods by which users change the settings of what they have started."""

    @property
    def settings(self) -> Settings:
        """All settings that can be changed while it runs (docs/operations.md)."""
        raise NotImplementedError

    def set(self, *, dry_run: bool = False, **settings: Any) -> list[Change]:
        """Change settings by name, all of them or, if one value is refused, none; return what differs now.

        With `dry_run` values are only checked, and the result is what would differ.
        """
        return self.settings.set(settings, dry_run=dry_run)

    @property
    def history(self) -> list[Change]:
        """The last changes of settings, the newest last."""
        return self.settings.history


def duration(
    read: Callable[[], float], put: Callable[[float], None], name: str, where: str, *, least: float = 0.0
) -> Setting:
    """A setting in seconds; new values may have units, as in "100ms"."""

    def prepare(value: Any) -> Callable[[], None]:
        return partial(put, length(value))

    def length(value: Any) -> float:
        return durations.seconds(value, what=name, where=where, least=least)

    return Setting(read, prepare, length)


def flag(read: Callable[[], bool], put: Callable[[bool], None], name: str, where: str) -> Setting:
    """A setting that is true or false."""

    def prepare(value: Any) -> Callable[[], None]:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} can't be {value!r}", where=where, remedy="use true or false")
        return partial(put, value)

    return Setting(read, prepare)


def numbers(value: Any, name: str, where: str, least: float = -math.inf, most: float = math.inf) -> dict[str, float]:
    """Return a mapping of names to finite numbers in these limits, or raise a ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} can't be {value!r}", where=where, remedy='use {"NAME": number}')
    limits = "" if least == -math.inf else f" from {least:g}" + (f" to {most:g}" if most < math.inf else " on")
    for key, number in value.items():
        real = isinstance(number, int | float) and not isinstance(number, bool)
        if not real or not least <= number <= most or not abs(number) <= LARGEST:
            raise ConfigError(f"{name} of '{key}' can't be {number!r}", where=where, remedy=f"use a number{limits}")
    return {str(key): float(number) for key, number in value.items()}


def of_name(name: str, by_pattern: Mapping[str, float], otherwise: float) -> float:
    """Return the number of the first pattern that matches a name."""
    matching = (each for pattern, each in by_pattern.items() if pattern == name or fnmatchcase(name, pattern))
    return next(matching, otherwise)


class Change(NamedTuple):
    """A setting that was changed, or in a dry run would be changed."""

    time: float
    """Wall-clock time in seconds."""
    who: str
    """The process that asked for it, and its user."""
    setting: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.setting} from {self.before} to {self.after}"


class Settings:
    """All settings of something that runs, by name. `together` is held while values are set: no decision is made then.

    Threads may call all methods at any time.
    """

    def __init__(self, settings: Mapping[str, Setting], together: AbstractContextManager[object], where: str) -> None:
        self._settings = dict(settings)
        self._together = together
        self._where = where
        self._lock = threading.Lock()
        self._changes: deque[Change] = deque(maxlen=MOST)

    def read(self) -> dict[str, Any]:
        """Return all current values by name, without the settings that do not apply now."""
        values = {name: setting.read() for name, setting in self._settings.items()}
        return {name: value for name, value in values.items() if value is not None}

    def set(self, wanted: Mapping[str, Any], *, dry_run: bool = False) -> list[Change]:
        """Change settings by name, all of them or, if one value is refused, none; return what differs now.

        With `dry_run` values are only checked, and the result is what would differ.
        """
        for name in wanted:
            if name not in self._settings:
                remedy = suggestion(name, self._settings)
                raise ConfigError(f"there is no setting '{name}'", where=self._where, remedy=remedy)
            for other in self._settings[name].apart:
                if other in wanted:
                    remedy = f"change {other} first, then {name}"
                    raise ConfigError(f"{name} and {other} can't change at once", where=self._where, remedy=remedy)
        with self._lock:
            before = {name: self._settings[name].read() for name in wanted}
            setters = {name: self._settings[name].prepare(value) for name, value in wanted.items()}
            after = {name: self._settings[name].after(value) for name, value in wanted.items()}
            if not dry_run:
                with self._together:
                    self._apply(setters, before)
                after = {name: self._settings[name].read() for name in wanted}
            who, now = caller(), time.time()
            changes = [
                Change(now, who, name, before[name], after[name]) for name in wanted if before[name] != after[name]
            ]
            if not dry_run:
                self._changes += changes
        for change in changes if not dry_run else ():
            log.info("%s changes %s (%s)", self._where, change, change.who, extra=change._asdict() | {"time": now})
        return changes

    def note(self, setting: str, before: Any, after: Any) -> None:
        """Remember and log a change that was made in another way than by `set`."""
        change = Change(time.time(), caller(), setting, before, after)
        with self._lock:
            self._changes.append(change)
        log.info("%s changes %s (%s)", self._where, change, change.who, extra=change._asdict())

    @property
    def history(self) -> list[Change]:
        """The last changes, the newest last."""
        with self._lock:
            return list(self._changes)

    def commands(self) -> dict[str, Callable[..., object]]:
        """Return handlers for the control socket: `settings`, `set` and `history`."""

        def set_(settings: dict[str, Any], dry_run: bool = False) -> list[dict[str, Any]]:
            if not isinstance(settings, dict):
                raise ConfigError("the settings are not an object", where=self._where, remedy='send {"name": value}')
            return [change._asdict() for change in self.set(settings, dry_run=dry_run is True)]

        return {
            "settings": self.read,
            "set": set_,
            "history": lambda: [change._asdict() for change in self.history],
        }

    def _apply(self, setters: Mapping[str, Callable[[], None]], before: Mapping[str, Any]) -> None:
        """Set all values; if one fails although it was checked, set the others back and raise the error."""
        done: list[str] = []
        try:
            for name, setter in setters.items():
                setter()
                done.append(name)
        except BaseException:
            for name in reversed(done):
                with suppress(Exception):  # the first error is the one to raise
                    self._settings[name].prepare(before[name])()
            raise
