"""The time slice per thread that EEVDF kernels take since Linux 6.12: short is soon, long is with few switches.

It knows sched_setattr. A slice changes when a thread runs and for how long at a stretch, not how much CPU it gets. None
of the papers has this lever.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from threading import Thread
from typing import Any

from treadle.enforce.kernel.guard import alive, called, gone
from treadle.enforce.kernel.nice import REMEDY
from treadle.enforce.kernel.numbers import number
from treadle.enforce.knob import Per, Target, Value
from treadle.errors import ConfigError, EngineError, RightsError
from treadle.linux.sched import Attributes, get_attributes, set_attributes
from treadle.model import ThreadRef

SHORTEST, LONGEST = 0.0001, 0.1
"""What the kernel cuts slices to, in seconds."""
PROBE = 7_000_000
NANO = 1e9


class SliceKnob:
    """The knob `slice`: seconds, to the nanosecond; 0 is the kernel's own.

    With `batch` the thread is SCHED_BATCH while it has a slice, which does not preempt others when it wakes, and
    SCHED_OTHER without. A negative slice is one with the other of these two policies: that is how a thread may be
    found, and how it is put back. Nice stays what it is.
    """

    name = "slice"
    per: Per = "thread"

    def __init__(self, *, batch: bool = False) -> None:
        self.options: Mapping[str, Any] = {"batch": batch}
        self._policy = os.SCHED_BATCH if batch else os.SCHED_OTHER
        self._other = os.SCHED_OTHER if batch else os.SCHED_BATCH

    def read(self, target: Target) -> Value:
        found = self._get(alive(target))
        if found.policy == os.SCHED_OTHER and found.runtime == default_slice():
            return 0.0
        return found.runtime / NANO if found.policy == self._policy else -found.runtime / NANO

    def write(self, target: Target, value: Value) -> None:
        policy, nanoseconds = self._wanted(value)
        if nanoseconds == default_slice():
            nanoseconds = 0
        thread = alive(target)
        attributes = self._get(thread)
        attributes.policy, attributes.runtime = policy, nanoseconds
        try:
            set_attributes(thread.tid, attributes)
        except ProcessLookupError:
            gone(thread)
        except PermissionError as error:
            raise RightsError("the time slice can't be set", where=called(thread), remedy=REMEDY) from error

    def _wanted(self, value: Value) -> tuple[int, int]:
        seconds = number(value, -LONGEST, LONGEST, self.name)
        if seconds == 0:
            return os.SCHED_OTHER, 0
        if abs(seconds) < SHORTEST:
            remedy = f"use {SHORTEST:g} to {LONGEST:g} seconds, or 0 for the kernel's own"
            raise ConfigError(f"can't be {value!r}", where=f"knob '{self.name}'", remedy=remedy)
        return (self._policy if seconds > 0 else self._other), round(abs(seconds) * NANO)

    def _get(self, thread: ThreadRef) -> Attributes:
        try:
            found = get_attributes(thread.tid)
        except ProcessLookupError:
            gone(thread)
        if found.policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
            remedy = "only threads of SCHED_OTHER and SCHED_BATCH have one here"
            raise EngineError(f"has no time slice: its policy is {found.policy}", where=called(thread), remedy=remedy)
        return found


def default_slice() -> int:
    """The nanoseconds that the kernel gives to a thread that has none of its own; an error if it takes none at all."""
    default, taken = _probed()
    if taken != PROBE:
        remedy = "Linux 6.12 or later does; use another knob here"
        raise EngineError(f"Linux {os.uname().release} takes no time slices", where="knob 'slice'", remedy=remedy)
    return default


@cache
def _probed() -> tuple[int, int]:
    """What the kernel reads after a slice of 0 and after one of `PROBE`, on a thread that lives for this alone."""
    seen: list[int] = []
    probe = Thread(target=_probe, args=(seen,))
    probe.start()
    probe.join()
    return (seen[0], seen[1]) if len(seen) == 2 else (0, 0)


def _probe(seen: list[int]) -> None:
    """Whatever this thread has inherited, and whatever it is given, ends with it."""
    with suppress(OSError):
        for nanoseconds in (0, PROBE):
            mine = get_attributes(0)
            mine.policy, mine.priority, mine.runtime = os.SCHED_OTHER, 0, nanoseconds
            set_attributes(0, mine)
            seen.append(get_attributes(0).runtime)
