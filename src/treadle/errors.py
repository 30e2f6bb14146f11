"""Everything Treadle raises on purpose has one root, says what was wrong, where, and what to do about it.

The command line turns any `TreadleError` into one line and exit code 2; nothing was changed when one is raised.
"""

from __future__ import annotations

from treadle.text import visible_lines


class TreadleError(Exception):
    """The root of all errors that a user can act on. `remedy` says how.

    Messages often quote names and answers of others, and end up on a terminal: control characters are made visible.
    """

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        message, where, remedy = map(visible_lines, (message, where, remedy))
        self.message = message
        self.where = where
        self.remedy = remedy
        place = f"{where}: " if where else ""
        hint = f" ({remedy})" if remedy else ""
        super().__init__(f"{place}{message}{hint}")


class ConfigError(TreadleError):
    """A configuration, scenario, graph or name that makes no sense."""


class EngineError(TreadleError):
    """An engine that can't be reached or does not offer what was asked of it."""


class RightsError(TreadleError):
    """A right that this user lacks (CAP_SYS_NICE, a writable cgroup, attach to a JVM)."""


class TargetGone(TreadleError):
    """What a knob was to be turned on has ended; there is nothing left to set or to restore."""
