"""Which kernel knobs work on this system for this user: each is tried on a thread or a group made only for the test.

Nothing stays changed. `treadle doctor` shows the results.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from threading import Thread, get_native_id
from typing import NamedTuple

from treadle.enforce.kernel.budget import system_share
from treadle.enforce.kernel.cgroup import Cgroups
from treadle.enforce.kernel.guard import thread_ref
from treadle.enforce.kernel.nice import AUTOGROUP, NiceKnob, autogroup_enabled
from treadle.enforce.kernel.realtime import RealtimeKnob
from treadle.enforce.kernel.slice import SliceKnob, default_slice
from treadle.errors import RightsError, TreadleError

PROBE = "treadle-probe"


class Fact(NamedTuple):
    """Whether a kernel feature (`what`) works here, and why; `remedy` says how to make it work.

    `rights`: whether it does not work because this user lacks a right.
    """

    what: str
    works: bool
    why: str
    remedy: str = ""
    rights: bool = False


def facts(only: Collection[str] | None = None) -> list[Fact]:
    """All facts, or only those named in `only`; others are not tried."""
    return [find() for what, find in _FACTS.items() if only is None or what in only]


def _nice() -> Fact:
    def lower() -> str:
        me, knob = thread_ref(get_native_id()), NiceKnob()
        knob.write(me, max(float(knob.read(me)) - 1, -20.0))
        return "nice can be set, also lower than it was"

    return _tried("nice", lower)


def _autogroup() -> Fact:
    if not autogroup_enabled():
        return Fact("autogroup", True, "off: nice compares across sessions")
    remedy = f"for processes of different sessions use --enforce cgroup, or write 0 to {AUTOGROUP}"
    return Fact("autogroup", False, "on: nice acts only within a session", remedy)


def _cgroup() -> Fact:
    def make() -> str:
        cgroups = _probe_groups()
        group = cgroups.path("group")
        try:
            cgroups.make(group)
            return f"cgroup v{cgroups.version} can be written at {cgroups.directory(cgroups.parent)}"
        finally:
            cgroups.clean()

    return _tried("cgroup", make)


def _quota() -> Fact:
    def look() -> str:
        cgroups = _probe_groups()
        file = "cpu.cfs_quota_us" if cgroups.version == 1 else "cpu.max"
        try:
            cgroups.make(cgroups.base)
            cgroups.read(cgroups.base, file)
            return f"cgroups have {file}"
        finally:
            cgroups.clean()

    return _tried("quota", look)


def _realtime() -> Fact:
    def rise() -> str:
        knob = RealtimeKnob()
        me = thread_ref(get_native_id())
        try:
            knob.write(me, 1.0)
            knob.write(me, 0.0)
        finally:
            knob.close()
        if knob.budget is None:
            share = system_share()
            known = "an unknown part" if math.isnan(share) else f"{share:.0%}"
            return f"SCHED_RR can be set; together real-time threads get {known} of each CPU"
        part = min(knob.budget.share, knob.budget.left())
        return f"SCHED_RR can be set, in a group that gets {part:.0%} of each CPU"

    return _tried("real-time", rise)


def _slice() -> Fact:
    def set_slice() -> str:
        knob, me = SliceKnob(), thread_ref(get_native_id())
        knob.write(me, 0.005)
        return f"Linux {os.uname().release} has settable time slices; the default is {default_slice() / 1e6:g} ms"

    return _tried("time slice", set_slice)


def _tried(what: str, attempt: Callable[[], str]) -> Fact:
    """Run an attempt in a new thread, so that its changes to that thread end with the thread."""
    outcome: list[Fact] = []

    def run() -> None:
        try:
            outcome.append(Fact(what, True, attempt()))
        except TreadleError as error:
            place = f"{error.where}: " if error.where else ""
            outcome.append(Fact(what, False, f"{place}{error.message}", error.remedy, isinstance(error, RightsError)))

    thread = Thread(target=run, name=f"treadle-probe-{what}")
    thread.start()
    thread.join()
    return outcome[0]


def _probe_groups() -> Cgroups:
    """Groups for the test, in the place where Treadle makes its groups.

    In v2 that place is the cgroup of an application; the test uses the cgroup of this process instead.
    """
    return Cgroups.for_process(os.getpid(), base=f"{PROBE}-{os.getpid()}")


_FACTS: dict[str, Callable[[], Fact]] = {
    "nice": _nice,
    "autogroup": _autogroup,
    "cgroup": _cgroup,
    "quota": _quota,
    "real-time": _realtime,
    "time slice": _slice,
}
