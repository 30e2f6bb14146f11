"""Real-time priorities: threads that run before all ordinary ones, in the order of their priority (Lachesis-RT).

The knob maps the kernel's scheduling policies to one scale of numbers. It does not change nice or the time slice. The
limit that leaves CPU to the rest of the machine is in `budget`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from treadle.enforce.kernel.budget import PERIOD, SHARE, Budget, check_limited
from treadle.enforce.kernel.cgroup import Cgroups, find_mount
from treadle.enforce.kernel.guard import alive, called, gone, has_sys_nice
from treadle.enforce.kernel.numbers import number
from treadle.enforce.knob import Per, Target, Value
from treadle.errors import ConfigError, EngineError, RightsError, TreadleError
from treadle.model import ThreadRef

REMEDY = "run as root or with CAP_SYS_NICE, or raise the RLIMIT_RTPRIO of that process"
NO_GROUPS = "its group has no RT budget in this kernel (RT_GROUP_SCHED): boot with rt_group_sched=0, or use nice"
OTHER_WAY = 0.5
REAL_TIME = (os.SCHED_RR, os.SCHED_FIFO)
ORDINARY = {0: os.SCHED_OTHER, -1: os.SCHED_BATCH, -2: os.SCHED_IDLE}


class Standing(NamedTuple):
    """The scheduling policy of a thread, found or wanted."""

    policy: int
    priority: int
    reset: bool
    """SCHED_RESET_ON_FORK: threads that the thread starts are ordinary."""

    @property
    def real_time(self) -> bool:
        return self.policy in REAL_TIME


class RealtimeKnob:
    """The knob `rt`: 0 is SCHED_OTHER, 1 to 99 SCHED_RR, 101 to 199 SCHED_FIFO, -1 SCHED_BATCH, -2 SCHED_IDLE.

    With `fifo`, 1 to 99 is SCHED_FIFO and 101 to 199 SCHED_RR. Threads that a real-time thread starts are ordinary
    (flag SCHED_RESET_ON_FORK), unless `inherit` is set. `inherit` is the default without CAP_SYS_NICE, which is needed
    to clear that flag. A value plus 0.5 means the same policy with the opposite flag, to restore threads that had it.

    A thread that becomes real-time is moved to a group with a budget; `share` and `period` are passed to `Budget`. It
    is not moved if the kernel has no budgets for groups, or if the thread was real-time before. If nothing at all
    limits real-time threads, no thread is made real-time.
    """

    name = "rt"
    per: Per = "thread"

    def __init__(
        self,
        *,
        fifo: bool = False,
        inherit: bool | None = None,
        share: float = SHARE,
        period: float = PERIOD,
        cgroups: Cgroups | None = None,
    ) -> None:
        self._inherit = not has_sys_nice() if inherit is None else inherit
        self._order = REAL_TIME[::-1] if fifo else REAL_TIME
        if cgroups is None and find_mount() is not None:
            cgroups = Cgroups()
        budget = None if cgroups is None else Budget(cgroups, share=_part(share), period=period)
        self.budget = budget if budget is not None and budget.needed else None
        self.options: Mapping[str, Any] = {
            "fifo": fifo,
            "inherit": self._inherit,
            "share": share,
            "period": period,
            **(cgroups.options if cgroups is not None else {}),
        }
        self._moved: dict[ThreadRef, bool] = {}
        """Real-time thread -> whether it is in a group with a budget; if not, it was real-time before, and stays."""

    def read(self, target: Target) -> Value:
        thread = alive(target)
        return self._number(self._get(thread), thread)

    def write(self, target: Target, value: Value) -> None:
        wanted = self._standing(value)
        thread = alive(target)
        found = self._get(thread)
        self._number(found, thread)  # refuses a thread with a policy that could not be restored
        rises = wanted.real_time and not found.real_time
        if rises:
            check_limited()
        if wanted.real_time or found.real_time:
            self._admit(thread, found)
        try:
            self._set(thread, wanted)
        except TreadleError:
            if rises:
                self._dismiss(thread)
            raise
        if found.real_time and not wanted.real_time:
            self._dismiss(thread)

    def send_home(self, thread: ThreadRef) -> None:
        """Move an ordinary thread out of a group for real-time threads, in which a real-time thread has started it."""
        if self.budget is not None and not self._get(thread).real_time:
            self.budget.dismiss(thread)

    def close(self) -> None:
        """Remove the groups for real-time threads. Call it after all values were put back."""
        if self.budget is not None:
            self.budget.clean()

    def _admit(self, thread: ThreadRef, found: Standing) -> None:
        """Move a thread that becomes real-time to a group with a budget.

        A thread that is real-time already stays; it is only recorded whether its group is one of these.
        """
        moved = self._moved.get(thread)
        if self.budget is None or moved is False or (moved and found.real_time):
            return
        if found.real_time:
            place = self.budget.cgroups.place(thread)
            self._moved[thread] = self.budget.cgroups.home(place) != place
            return
        with suppress(RightsError):  # without our groups only the kernel's own limit holds
            self.budget.admit(thread)
            self._moved[thread] = True

    def _dismiss(self, thread: ThreadRef) -> None:
        if self.budget is not None and self._moved.get(thread):
            del self._moved[thread]
            self.budget.dismiss(thread)

    def _get(self, thread: ThreadRef) -> Standing:
        try:
            policy = os.sched_getscheduler(thread.tid)
            priority = os.sched_getparam(thread.tid).sched_priority
        except ProcessLookupError:
            gone(thread)
        return Standing(policy & ~os.SCHED_RESET_ON_FORK, priority, bool(policy & os.SCHED_RESET_ON_FORK))

    def _set(self, thread: ThreadRef, wanted: Standing) -> None:
        flag = os.SCHED_RESET_ON_FORK if wanted.reset else 0
        try:
            os.sched_setscheduler(thread.tid, wanted.policy | flag, os.sched_param(wanted.priority))
        except ProcessLookupError:
            gone(thread)
        except PermissionError as error:
            refused = wanted.real_time and has_sys_nice()
            kind, remedy = (EngineError, NO_GROUPS) if refused else (RightsError, REMEDY)
            what = "a real-time priority" if wanted.real_time else "its scheduling policy"
            raise kind(f"{what} can't be set", where=called(thread), remedy=remedy) from error

    def _number(self, standing: Standing, thread: ThreadRef) -> float:
        policy, priority, reset = standing
        if policy in REAL_TIME:
            base = priority + 100.0 * self._order.index(policy)
        else:
            base = next((float(code) for code, ordinary in ORDINARY.items() if ordinary == policy), math.nan)
        if math.isnan(base):
            raise EngineError(
                f"can't restore scheduling policy {policy}", where=called(thread), remedy="leave the thread out"
            )
        return base + OTHER_WAY * (reset != self._resets(standing.real_time))

    def _standing(self, value: Value) -> Standing:
        checked = number(value, -2, 199.5, self.name)
        base = math.floor(checked)
        if checked - base not in (0, OTHER_WAY) or base == 100:
            remedy = "use 0 for SCHED_OTHER, 1 to 99 for a real-time priority"
            raise ConfigError(f"can't be {value!r}", where=f"knob '{self.name}'", remedy=remedy)
        reset = self._resets(base > 0) != (checked != base)
        if base > 0:
            return Standing(self._order[base > 100], base % 100, reset)
        return Standing(ORDINARY[base], 0, reset)

    def _resets(self, real_time: bool) -> bool:
        return real_time and not self._inherit


def _part(share: float) -> float:
    if not 0 < share < 1:
        remedy = "use a number between 0 and 1, as 0.9; all other threads get the rest"
        raise ConfigError(f"share can't be {share!r}", where="knob 'rt'", remedy=remedy)
    return share
