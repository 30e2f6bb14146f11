"""Makes the kernel's knobs for each application of an attachment, with cgroups that only this attachment uses.

Cgroups are made inside the one that an application is in already, so that limits around it still hold. Only real-time
threads are moved elsewhere, as the kernel requires: to a cgroup with a real-time budget.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count
from typing import Any

from treadle.attachment.plan import PARTS, Plan
from treadle.enforce import Knob, kernel
from treadle.enforce.kernel import Cgroups, RealtimeKnob
from treadle.enforce.kernel.mounts import cpu_group
from treadle.enforce.recovery.releasable import Releasable
from treadle.engines.spark.application import Application

_numbers = count()


class Knobs:
    """Makes and closes the knobs of an attachment."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._base = f"treadle-{os.getpid()}-{next(_numbers)}"
        self._cgroups: dict[str, Cgroups] = {}
        self._made: list[Any] = []

    @property
    def version(self) -> int:
        """The version of cgroups on this machine; 1 if there are none."""
        mount = kernel.find_mount()
        return 1 if mount is None else mount.version

    def make(self, application: Application) -> Mapping[str, Knob]:
        """Make all knobs that the plan needs, by name."""
        made: dict[str, Knob] = {}
        for part, options in self._plan.parts.items():
            for name in PARTS[part].knobs:
                name = "weight" if name == "shares" and self.version == 2 else name
                if name not in made:
                    made[name] = self._knob(name, options, application)
        self._made += [knob for knob in made.values() if hasattr(knob, "close")]
        return made

    def close(self) -> None:
        """Remove the cgroups. Call this after all changes are undone."""
        for knob in self._made:
            knob.close()

    def _knob(self, name: str, options: Mapping[str, object], application: Application) -> Knob:
        if name == "rt":
            cgroups = None if kernel.find_mount() is None else Cgroups.for_process(_pid(application), base=self._base)
            return Releasable(kernel.make("rt", cgroups=cgroups, fifo=options["fifo"], share=options["share"]))
        if name == "slice":
            return kernel.make("slice", batch=options["batch"])
        if name == "nice":
            return kernel.make("nice")
        return kernel.make(name, cgroups=self._groups(application))

    def _groups(self, application: Application) -> Cgroups:
        found = Cgroups.for_process(_pid(application), base=self._base)
        if found.version == 1:
            homes = {cpu_group(process.pid, found.mount) for process in application.processes}
            if len(homes) == 1:
                found = Cgroups(self._base, parent=homes.pop(), mount=found.mount)
        return self._cgroups.setdefault(found.parent, found)


def part(releasable: Releasable) -> float:
    """Return the maximum share of each CPU that this knob's real-time threads can use; 1 without a budget."""
    budget = releasable.knob.budget if isinstance(releasable.knob, RealtimeKnob) else None
    return 1.0 if budget is None else budget.part()


def _pid(application: Application) -> int:
    return application.processes[0].pid if application.processes else os.getpid()
