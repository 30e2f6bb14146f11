"""Time slices per thread, with the EEVDF scheduler since Linux 6.12.

A thread with a short slice runs sooner, one with a long slice is switched less often. A slice does not change how much
CPU a thread gets. It is set by sched_setattr. None of the papers uses slices.
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
"""The range to which the kernel clamps slices, in seconds."""
PROBE = 7_000_000
NANO = 1e9


class SliceKnob:
    """The knob `slice`: a thread's time slice in seconds, in steps of a nanosecond; 0 is the kernel's default.

    A positive value also sets the scheduling policy: SCHED_OTHER, or with `batch` SCHED_BATCH, so that the thread
    preempts no other thread when it wakes up. A negative value sets the same slice with the other one of the two
    policies; it restores a thread that was found with that policy. The value 0 sets SCHED_OTHER. Nice is not changed.
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
            remedy = "use threads of SCHED_OTHER or SCHED_BATCH"
            raise EngineError(f"has no time slice: its policy is {found.policy}", where=called(thread), remedy=remedy)
        return found


def default_slice() -> int:
    """The kernel's default slice in nanoseconds; raises an error if threads can't have slices in this kernel."""
    default, taken = _probed()
    if taken != PROBE:
        remedy = "use Linux 6.12 or later, or another knob"
        raise EngineError(
            f"Linux {os.uname().release} has no settable time slices", where="knob 'slice'", remedy=remedy
        )
    return default


@cache
def _probed() -> tuple[int, int]:
    """The slices that the kernel reports after setting 0 and after setting `PROBE`, on a new thread."""
    seen: list[int] = []
    probe = Thread(target=_probe, args=(seen,))
    probe.start()
    probe.join()
    return (seen[0], seen[1]) if len(seen) == 2 else (0, 0)


def _probe(seen: list[int]) -> None:
    """Set and read slices of this thread; the thread then ends, so nothing is put back."""
    with suppress(OSError):
        for nanoseconds in (0, PROBE):
            mine = get_attributes(0)
            mine.policy, mine.priority, mine.runtime = os.SCHED_OTHER, 0, nanoseconds
            set_attributes(0, mine)
            seen.append(get_attributes(0).runtime)
