"""The errors that Treadle raises on purpose: each says what was wrong, where, and what to do about it.

The command line shows any `TreadleError` as one line and ends with exit code 2.
"""

from __future__ import annotations

from treadle.text import visible_lines


class TreadleError(Exception):
    """The base class of all errors that a user can act on. `remedy` says how.

    Messages quote names and output of other programs, and are shown on terminals. So control characters are escaped.
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
    """An engine that can't be reached or does not offer what is needed."""


class RightsError(TreadleError):
    """A right that this user lacks (CAP_SYS_NICE, a writable cgroup, attach to a JVM)."""


class TargetGone(TreadleError):
    """The target (a thread, a process, a group) has ended; there is nothing left to set or to restore."""
