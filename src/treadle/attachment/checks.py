"""Checks before anything is changed whether a plan can be carried out here: rights, kernel, sessions, budgets.

The facts come from the kernel package; this module knows which of them matter for a plan, and raises one clear error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from treadle.attachment.plan import Plan
from treadle.enforce import Outcomes, kernel
from treadle.enforce.recovery import journal_book
from treadle.enforce.recovery.leftovers import journals, leftovers, put_back
from treadle.engines.spark.application import Application
from treadle.errors import EngineError, RightsError
from treadle.model import ThreadRef

FACTS = {"nice": "nice", "cgroup": "cgroup", "rt": "real-time", "slice": "time slice", "quota": "quota"}
PATIENCE = 5.0
"""Maximum seconds to wait until the guardians of killed Treadle processes have undone their changes."""


def check(plan: Plan, applications: Iterable[Application]) -> None:
    """Raise an error if this user can't carry out the plan on this kernel for these applications."""
    facts = {fact.what: fact for fact in kernel.facts([FACTS[part] for part in plan.parts])}
    for part in plan.parts:
        fact = facts[FACTS[part]]
        if not fact.works:
            kind = RightsError if fact.rights else EngineError
            raise kind(f"is not available here: {fact.why}", where=f"enforce '{part}'", remedy=fact.remedy)
    if "nice" in plan.parts and "cgroup" not in plan.parts:
        _check_arenas([process.pid for application in applications for process in application.processes])


def _check_arenas(pids: list[int]) -> None:
    """Raise an error if the kernel keeps these processes in different groups, across which nice has no effect."""
    arenas = kernel.arenas(pids)
    if len(arenas) > 1:
        which = "; ".join(f"{', '.join(map(str, pids))} in {arena}" for arena, pids in arenas.items())
        why = "with autogroup, nice" if kernel.autogroup_enabled() else "nice"
        remedy = "use enforce='cgroup'" + (f", or write 0 to {_AUTOGROUP}" if kernel.autogroup_enabled() else "")
        raise EngineError(
            f"{why} has no effect between processes of different sessions or groups: {which}",
            where="enforce 'nice'",
            remedy=remedy,
        )


_AUTOGROUP = "/proc/sys/kernel/sched_autogroup_enabled"


def settle_leftovers(pids: Collection[int] | None = None) -> list[Outcomes]:
    """Undo the changes that killed Treadle processes have left, after waiting for guardians that are undoing them.

    With `pids`, changes that were left on purpose are undone only if they concern one of these processes.
    """
    limit = time.monotonic() + PATIENCE
    while any(_being_put_back(path) for path in journals()) and time.monotonic() < limit:
        time.sleep(0.01)
    return [outcomes for path in leftovers(pids=pids) for outcomes in put_back(path)]


def settle(applications: Iterable[Application]) -> None:
    """Call `settle_leftovers`; raise an error if one of these applications keeps a changed value.

    Otherwise that value would be taken for the application's own.
    """
    pids = {process.pid for application in applications for process in application.processes}
    for outcomes in settle_leftovers(pids):
        for failure in outcomes.failures:
            if isinstance(failure.target, ThreadRef) and failure.target.pid in pids:
                raise EngineError(
                    f"a value that an earlier treadle process changed can't be restored: {failure}",
                    where=f"process {failure.target.pid}",
                    remedy="run `treadle restore` as root",
                )


def _being_put_back(path: Path) -> bool:
    try:
        book = journal_book.read(path)
    except OSError:
        return False
    return not book.owner.alive and book.guardian.alive and book.world == journal_book.world()


def cores(application: Application) -> float:
    """Return the number of CPUs that an application's processes may run on."""
    allowed: set[int] = set()
    for process in application.processes:
        try:
            allowed |= os.sched_getaffinity(process.pid)
        except OSError:
            continue
    return float(len(allowed) or os.cpu_count() or 1)
