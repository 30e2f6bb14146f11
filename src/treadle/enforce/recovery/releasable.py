"""A knob that any thread can switch off at any moment, as a watchdog needs; all targets then get their found values.

It remembers the found and the wanted value of each target; when to switch off is decided elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from treadle.enforce.knob import Knob, Per, Target, Value
from treadle.errors import TargetGone
from treadle.model import ThreadRef

log = logging.getLogger("treadle.enforce")


class Releasable:
    """Wraps a real-time knob, so that any thread can switch it off at any moment, and on again.

    While the knob is off, a written value is only remembered, and `read` returns it as if it were set. So enforcers and
    policies go on as usual, and their last values are set when the knob is on again. Only a write of the found value
    always takes effect.
    """

    def __init__(self, knob: Knob) -> None:
        self.knob = knob
        self.name = knob.name
        self.per: Per = knob.per
        self.options: Mapping[str, Any] | None = getattr(knob, "options", None)
        self.reason = ""
        """Why the knob is off; empty while it is on."""
        self._off = False
        self._found: dict[Target, Value] = {}
        self._wanted: dict[Target, Value] = {}

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets that have a priority by this knob, or would have one if it were on."""
        return tuple(self._wanted)

    def read(self, target: Target) -> Value:
        try:
            seen = self.knob.read(target)
        except TargetGone:
            self._drop(target)
            raise
        if self._off and seen == self._found.get(target):
            return self._wanted.get(target, seen)
        return seen

    def write(self, target: Target, value: Value) -> None:
        try:
            found = self._found.get(target)
            if found is None:
                found = self._found[target] = self.knob.read(target)
            if value == found:
                self.knob.write(target, value)
                self._drop(target)
                return
            self._wanted[target] = value
            if not self._off:
                self.knob.write(target, value)
            if self._off:  # another thread may have released since the check above
                self.knob.write(target, found)
        except TargetGone:
            self._drop(target)
            raise

    def release(self, reason: str) -> None:
        """Switch off: set all targets to their found values, until `resume`."""
        self.reason = reason
        self._off = True
        error: Exception | None = None
        for target in self.targets:
            try:
                self.knob.write(target, self._found[target])
            except (TargetGone, KeyError):  # the target has ended, or was put back at the same time
                self._drop(target)
            except Exception as one:  # raised after all the others
                error = one
        if error is not None:
            raise error

    def resume(self) -> None:
        """Switch on again, with the values that were wanted last."""
        self.reason = ""
        self._off = False
        for target, value in list(self._wanted.items()):
            found = self._found.get(target)
            try:
                self.knob.write(target, value)
                if found is not None and (self._off or target not in self._wanted):  # by another thread
                    self.knob.write(target, found)
            except TargetGone:
                self._drop(target)
            except Exception as error:  # the enforcer won't see this error, since it wrote the value before
                log.warning("knob '%s' could not be switched on again: %s", self.name, error, extra={"knob": self.name})

    def send_home(self, thread: ThreadRef) -> None:
        """Call `send_home` of the wrapped knob, if it has this method."""
        send_home = getattr(self.knob, "send_home", None)
        if send_home is not None:
            send_home(thread)

    def close(self) -> None:
        """Call `close` of the wrapped knob, if it has this method."""
        close = getattr(self.knob, "close", None)
        if close is not None:
            close()

    def _drop(self, target: Target) -> None:
        self._wanted.pop(target, None)
        self._found.pop(target, None)
