"""The knobs on CPU groups: which group a thread is in, and what share of the CPU a group gets.

They write the files of cgroup v1 and v2; the paths of these files are in `cgroup`. Lachesis section 5.3 sets shares
per query, and leaves quotas (limits on queries) to future work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from treadle.enforce.kernel.budget import Budget
from treadle.enforce.kernel.cgroup import Cgroups
from treadle.enforce.kernel.guard import alive
from treadle.enforce.kernel.numbers import number, whole
from treadle.enforce.knob import Per, Target, Value
from treadle.errors import ConfigError, EngineError
from treadle.model import ThreadRef

LEAST_QUOTA = 1000
"""The smallest quota, in microseconds per period, that the kernel accepts."""


class GroupKnob:
    """The knob `group`: the name of the group that a thread is in. Writing a name makes the group if it is missing.

    For a thread outside of our groups, the value is the path of its group, with a leading "/". A path can be written,
    too, if the group exists.
    """

    name = "group"
    per: Per = "thread"

    def __init__(self, cgroups: Cgroups) -> None:
        self.cgroups = cgroups
        self.options: Mapping[str, Any] = cgroups.options
        self._budget = Budget(cgroups)

    def read(self, target: Target) -> Value:
        return self.cgroups.name(self.cgroups.of(alive(target)))

    def write(self, target: Target, value: Value) -> None:
        if not isinstance(value, str):
            raise ConfigError(f"can't be {value!r}", where="knob 'group'", remedy="use the name of a group")
        thread, path = alive(target), self.cgroups.path(value)
        if not value.startswith("/"):
            self.cgroups.make(path)
        elif not self.cgroups.exists(path):
            remedy = "it was removed; the thread stays where it is"
            raise EngineError("does not exist", where=f"group {path}", remedy=remedy)
        place = self.cgroups.place(thread)
        if self.cgroups.home(place) != place:  # the thread stays real-time, so its new home needs a budget
            self._budget.admit(thread, path)
        else:
            self.cgroups.move(thread, path)

    def close(self) -> None:
        """Remove all our groups. Call it after all values were put back."""
        self.cgroups.clean()


class _GroupFile:
    """A knob that reads and writes a file of a group. The file exists in cgroup `version`; 0 means in both versions."""

    name: str
    per: Per = "group"
    version: int

    def __init__(self, cgroups: Cgroups) -> None:
        if self.version and cgroups.version != self.version:
            other = {"shares": "weight", "weight": "shares"}[self.name]
            message = f"needs cgroup v{self.version}, and this system has v{cgroups.version}"
            raise EngineError(message, where=f"knob '{self.name}'", remedy=f"use the knob '{other}'")
        self.cgroups = cgroups
        self.options: Mapping[str, Any] = cgroups.options

    def _path(self, target: Target) -> str:
        if isinstance(target, ThreadRef):
            message = f"thread {target.tid} is not a group"
            raise ConfigError(message, where=f"knob '{self.name}'", remedy="name a group")
        return self.cgroups.path(target)


class SharesKnob(_GroupFile):
    """The knob `shares` of cgroup v1: 2 to 262144, 1024 by default, relative to the groups with the same parent."""

    name = "shares"
    version = 1

    def read(self, target: Target) -> Value:
        return float(self.cgroups.read(self._path(target), "cpu.shares"))

    def write(self, target: Target, value: Value) -> None:
        self.cgroups.write(self._path(target), "cpu.shares", str(whole(value, 2, 262144, self.name)))


class WeightKnob(_GroupFile):
    """The knob `weight` of cgroup v2: 1 to 10000, 100 by default, relative to the groups with the same parent."""

    name = "weight"
    version = 2

    def read(self, target: Target) -> Value:
        return float(self.cgroups.read(self._path(target), "cpu.weight"))

    def write(self, target: Target, value: Value) -> None:
        self.cgroups.write(self._path(target), "cpu.weight", str(whole(value, 1, 10000, self.name)))


class QuotaKnob(_GroupFile):
    """The knob `quota`: the largest number of CPUs that a group may use, such as 1.5; infinity is no limit.

    The kernel counts microseconds per period. The period is not changed; its default, 100 ms, gives five decimals.
    """

    name = "quota"
    version = 0

    def read(self, target: Target) -> Value:
        quota, period = self._found(self._path(target))
        return math.inf if quota is None else quota / period

    def write(self, target: Target, value: Value) -> None:
        path = self._path(target)
        cpus = number(value, 0, math.inf, self.name)
        _, period = self._found(path)
        quota = None if math.isinf(cpus) else round(cpus * period)
        if quota is not None and quota < LEAST_QUOTA:
            remedy = f"use {LEAST_QUOTA / period:g} CPUs at least"
            raise ConfigError(f"can't be {value!r}", where=f"knob '{self.name}'", remedy=remedy)
        if self.cgroups.version == 1:
            self.cgroups.write(path, "cpu.cfs_quota_us", str(-1 if quota is None else quota))
        else:
            self.cgroups.write(path, "cpu.max", f"{'max' if quota is None else quota} {period}")

    def _found(self, path: str) -> tuple[int | None, int]:
        """The quota (None without a limit) and the period, in microseconds."""
        if self.cgroups.version == 2:
            quota, period = self.cgroups.read(path, "cpu.max").split()
            return None if quota == "max" else int(quota), int(period)
        microseconds = int(self.cgroups.read(path, "cpu.cfs_quota_us"))
        return None if microseconds < 0 else microseconds, int(self.cgroups.read(path, "cpu.cfs_period_us"))
