"""A hard limit on the CPU of real-time threads, on kernels that have one per group (real-time group scheduling).

It sets `cpu.rt_runtime_us` of cgroup v1, with which Lachesis-RT (section 4) leaves a share to the rest of the machine.
While a thread is real-time it is in a group whose name contains the path of its previous group, its home. So another
process can move the thread home after the process that moved it was killed.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress

from treadle.enforce.kernel.cgroup import Cgroups
from treadle.enforce.kernel.names import escape
from treadle.errors import EngineError, TargetGone, TreadleError
from treadle.model import ThreadRef

SHARE = 0.9
"""The share of each CPU's time that all real-time threads together may use."""
PERIOD = 0.1
"""Seconds of a budget period. A group that has used up its share waits for the next period; others wait no longer."""
LEAST = 0.01
"""The smallest share of each CPU for real-time threads: if less is left, it is an error to admit one."""
MICRO = 1_000_000
RUNTIME, LENGTH = "cpu.rt_runtime_us", "cpu.rt_period_us"
WHERE = "real-time budget"
LIMIT, LIMIT_PERIOD = "/proc/sys/kernel/sched_rt_runtime_us", "/proc/sys/kernel/sched_rt_period_us"
"""The kernel's own limit on all real-time threads together. While it is off, budgets of groups do not hold either."""


def system_share() -> float:
    """The share of each CPU that the kernel allows to real-time threads: infinite without a limit, NaN if unknown."""
    try:
        with open(LIMIT) as runtime, open(LIMIT_PERIOD) as period:
            microseconds = int(runtime.read())
            return math.inf if microseconds < 0 else microseconds / int(period.read())
    except (OSError, ValueError):
        return math.nan


def check_limited() -> None:
    """Raise an error if nothing limits real-time threads: one that never sleeps would block all other threads."""
    if system_share() >= 1.0:
        raise EngineError(
            f"nothing limits real-time threads here: {LIMIT} is -1 or all of a period, which also lifts the budgets of"
            " groups",
            where=WHERE,
            remedy=f"write 950000 to {LIMIT}, or use 'nice'",
        )


class Budget:
    """The groups for real-time threads: one for each home, which is the group that a thread came from.

    These groups together get `share` of each CPU, or what their parent group has left if that is less. It is divided
    evenly among them.
    """

    def __init__(self, cgroups: Cgroups, *, share: float = SHARE, period: float = PERIOD) -> None:
        self.cgroups = cgroups
        self.share = share
        self.period = period

    @property
    def needed(self) -> bool:
        """Whether this kernel gives real-time budgets to groups."""
        cgroups = self.cgroups
        return cgroups.version == 1 and os.path.exists(f"{cgroups.directory(cgroups.parent)}/{RUNTIME}")

    def left(self) -> float:
        """The real-time share of each CPU that our parent group has, less what its other children have of it."""
        parent, ours = self.cgroups.parent, self.cgroups.realtime
        taken = sum(self._part(child) for child in self.cgroups.children(parent) if child != ours)
        return self._part(parent) - taken

    def part(self) -> float:
        """The share of each CPU that our real-time threads have together, or that the first one would get."""
        ours = self.cgroups.realtime
        return self._part(ours) if self.cgroups.exists(ours) else min(self.share, self.left())

    def admit(self, thread: ThreadRef, home: str | None = None) -> None:
        """Move a thread to the group with a budget for `home`, by default for the home that it has now.

        On an error the thread stays where it is, and no empty group is left behind.
        """
        place = self.cgroups.place(thread)
        was = self.cgroups.home(place)
        around = self.cgroups.realtime if was == place else self.cgroups.split(place)[0]
        for again in (True, False):
            try:
                self.cgroups.move(thread, self._group_for(was if home is None else home, around))
                return
            except TargetGone:  # the thread has ended, or another process has removed the group while it was empty
                if not again or not os.path.exists(f"/proc/{thread.pid}/task/{thread.tid}"):
                    raise

    def dismiss(self, thread: ThreadRef) -> None:
        """Move a thread that is no longer real-time to its home, or to the nearest parent group that still exists."""
        place = self.cgroups.place(thread)
        home = self.cgroups.home(place)
        if home == place:
            return
        while not self.cgroups.exists(home) and home != "/":
            home = self.cgroups.split(home)[0]
        self.cgroups.move(thread, home)

    def clean(self) -> None:
        """Move ordinary threads home, since real-time threads may have started some here, and remove empty groups."""
        for group in self.cgroups.children(self.cgroups.realtime):
            with suppress(TreadleError):
                for tid in self.cgroups.threads(group):
                    with suppress(OSError, TreadleError):
                        if os.sched_getscheduler(tid) & ~os.SCHED_RESET_ON_FORK not in (os.SCHED_RR, os.SCHED_FIFO):
                            self.dismiss(ThreadRef(tid, tid))
            self._remove(group)
        if not self._remove(self.cgroups.realtime):
            with suppress(TreadleError):  # another process may be doing the same
                self._divide(self.cgroups.realtime)

    def _group_for(self, home: str, around: str) -> str:
        group = self.cgroups.join(around, escape(home))
        if self.cgroups.home(group) != home:
            raise EngineError("its name is too long", where=f"group {home}", remedy="use shorter names")
        if not self.cgroups.exists(group) or self._part(group) == 0:
            self._make(group, around)
        return group

    def _make(self, group: str, around: str) -> None:
        """Make the group for one more home. The budgets of the other groups are reduced first: their sum is limited."""
        part = self._part(around) if self.cgroups.exists(around) else 0.0
        if part == 0:
            part = min(self.share, self.left())
            if part < LEAST:
                self._none_left()
            self.cgroups.make(around)
            self._give(around, part)
        others = [child for child in self.cgroups.children(around) if child != group and not self._remove(child)]
        part = part / (len(others) + 1)
        for other in others:
            self._give(other, part)
        self.cgroups.make(group)
        self._give(group, part)

    def _divide(self, around: str) -> None:
        """Divide the budget evenly among the groups in `around`.

        The largest budgets are changed first, since the sum may not exceed the limit at any moment.
        """
        parts = {child: self._part(child) for child in self.cgroups.children(around)}
        for child in sorted(parts, key=lambda child: -parts[child]):
            self._give(child, self._part(around) / len(parts))

    def _give(self, group: str, part: float) -> None:
        period = round(self.period * MICRO)
        try:
            if int(self.cgroups.read(group, LENGTH)) != period:
                self.cgroups.write(group, LENGTH, str(period))
            self.cgroups.write(group, RUNTIME, str(int(part * period + 1e-6)))
        except TreadleError:
            self._remove(group)
            self._remove(self.cgroups.realtime)
            raise

    def _remove(self, group: str) -> bool:
        """Remove a group if it is empty. Its budget is set to 0 first: rmdir alone frees it only some time later."""
        with suppress(TreadleError):
            if not self.cgroups.threads(group) and not self.cgroups.children(group):
                self.cgroups.write(group, RUNTIME, "0")
        return self.cgroups.remove(group)

    def _part(self, group: str) -> float:
        runtime = int(self.cgroups.read(group, RUNTIME))
        return 1.0 if runtime < 0 else runtime / int(self.cgroups.read(group, LENGTH))

    def _none_left(self) -> None:
        parent = self.cgroups.parent
        raise EngineError(
            f"group {parent} has no budget left for real-time threads: other groups have its whole"
            f" {self._part(parent):.0%} of each CPU",
            where=WHERE,
            remedy=f"raise {RUNTIME} of {parent} (microseconds), lower that of the groups in it, or use 'nice'",
        )
