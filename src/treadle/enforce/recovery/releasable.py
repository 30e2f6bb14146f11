"""A knob that can be let go at any moment by another thread than the one that turns it: what a watchdog needs.

It knows what was found and what is wanted for each target, not when to let go.
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
    """A knob for real-time priorities that can be let go by any thread at any moment, and taken up again.

    While it is off, what is written is only remembered, and read as if it were set: so enforcers and policies go on as
    ever, and what they last wanted holds when it is on again. Putting back always goes through.
    """

    def __init__(self, knob: Knob) -> None:
        self.knob = knob
        self.name = knob.name
        self.per: Per = knob.per
        self.options: Mapping[str, Any] | None = getattr(knob, "options", None)
        self.reason = ""
        """Why it is off."""
        self._off = False
        self._found: dict[Target, Value] = {}
        self._wanted: dict[Target, Value] = {}

    @property
    def targets(self) -> tuple[Target, ...]:
        """Those that have a priority by this knob, or would have if it were on."""
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
            if self._off:  # perhaps only since a moment ago, and by another thread
                self.knob.write(target, found)
        except TargetGone:
            self._drop(target)
            raise

    def release(self, reason: str) -> None:
        """Off: everything as it was found, until `resume`."""
        self.reason = reason
        self._off = True
        error: Exception | None = None
        for target in self.targets:
            try:
                self.knob.write(target, self._found[target])
            except (TargetGone, KeyError):  # has ended, or was put back in this very moment
                self._drop(target)
            except Exception as one:  # all the others first
                error = one
        if error is not None:
            raise error

    def resume(self) -> None:
        """On again, with what was wanted last."""
        self.reason = ""
        self._off = False
        for target, value in list(self._wanted.items()):
            found = self._found.get(target)
            try:
                self.knob.write(target, value)
                if found is not None and (self._off or target not in self._wanted):  # since a moment ago
                    self.knob.write(target, found)
            except TargetGone:
                self._drop(target)
            except Exception as error:  # the enforcer will not see this one, since it has written it before
                log.warning("%s could not be set again: %s", self.name, error, extra={"knob": self.name})

    def send_home(self, thread: ThreadRef) -> None:
        """As the knob has it."""
        send_home = getattr(self.knob, "send_home", None)
        if send_home is not None:
            send_home(thread)

    def close(self) -> None:
        """As the knob has it."""
        close = getattr(self.knob, "close", None)
        if close is not None:
            close()

    def _drop(self, target: Target) -> None:
        self._wanted.pop(target, None)
        self._found.pop(target, None)
