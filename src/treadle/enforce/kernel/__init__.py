"""Knobs on real kernel threads: nice, real-time priorities, time slices, and CPU groups (Lachesis, Lachesis-RT).

Each knob is one system call or one small file. A thread is identified by its id, its process and its start time, so a
later thread with the same id is never changed. With the `options` of a knob, another process can `make` the same knob.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.enforce.kernel.budget import Budget
from treadle.enforce.kernel.cgroup import Cgroups, Mount, find_mount
from treadle.enforce.kernel.facts import Fact, facts
from treadle.enforce.kernel.groups import GroupKnob, QuotaKnob, SharesKnob, WeightKnob
from treadle.enforce.kernel.guard import alive, has_sys_nice, thread_ref
from treadle.enforce.kernel.nice import NiceKnob, arenas, autogroup_enabled
from treadle.enforce.kernel.realtime import RealtimeKnob
from treadle.enforce.kernel.slice import SliceKnob
from treadle.enforce.knob import Knob
from treadle.errors import ConfigError, TreadleError

__all__ = [
    "NAMES",
    "Budget",
    "Cgroups",
    "Fact",
    "GroupKnob",
    "Mount",
    "NiceKnob",
    "QuotaKnob",
    "RealtimeKnob",
    "SharesKnob",
    "SliceKnob",
    "WeightKnob",
    "alive",
    "arenas",
    "autogroup_enabled",
    "available",
    "facts",
    "find_mount",
    "has_sys_nice",
    "make",
    "thread_ref",
]


def make(name: str, *, cgroups: Cgroups | None = None, **options: Any) -> Knob:
    """Make a knob by its name. Knobs on groups use `cgroups`; without it they make their own from `options`."""
    if name not in _MAKERS:
        raise ConfigError(f"there is no kernel knob '{name}'", remedy=f"known: {', '.join(NAMES)}")
    try:
        if name in _ON_GROUPS:
            groups = {key: options.pop(key) for key in ("base", "parent", "controlled") if key in options}
            if cgroups is None and (groups or name != RealtimeKnob.name):
                cgroups = Cgroups(**groups)
            options["cgroups"] = cgroups
        return _MAKERS[name](**options)
    except TypeError as error:
        raise ConfigError(f"can't be made with {options}", where=f"knob '{name}'", remedy=str(error)) from error


def available() -> dict[str, Knob]:
    """All kernel knobs that work on this system."""
    found: dict[str, Knob] = {}
    for name in NAMES:
        try:
            found[name] = make(name)
        except TreadleError:
            continue
    return found


_MAKERS: dict[str, Callable[..., Knob]] = {
    NiceKnob.name: NiceKnob,
    RealtimeKnob.name: RealtimeKnob,
    SliceKnob.name: SliceKnob,
    GroupKnob.name: GroupKnob,
    SharesKnob.name: SharesKnob,
    WeightKnob.name: WeightKnob,
    QuotaKnob.name: QuotaKnob,
}
_ON_GROUPS = {RealtimeKnob.name, GroupKnob.name, SharesKnob.name, WeightKnob.name, QuotaKnob.name}
NAMES = tuple(_MAKERS)
