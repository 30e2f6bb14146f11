"""Controls one knob of one engine for one binding: carries out orders, and ends decisions that became stale.

A target with an unknown priority keeps its last value; after too many such rounds it is put back as it was found. If it
serves another instance meanwhile, it is put back at once, since its value was never meant for that instance.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np

from treadle.enforce import Changes, Column, Enforcer, Failure, Outcomes, Target, Value, label
from treadle.enforce.changes import complete, missing
from treadle.loop.knob_targets import NOBODY, KnobTargets
from treadle.loop.translate import Order
from treadle.loop.trouble import Trouble
from treadle.model import Ints, Topology

log = logging.getLogger("treadle.loop")

NONE = np.empty(0, dtype=np.int64)


class AppliedChanges(NamedTuple):
    """Changes that were made; `at` are their positions among the targets of the order."""

    changes: Changes
    at: Ints
    failures: tuple[Failure, ...] = ()
    back: str = ""
    """Why the targets were put back; empty if they were not."""


class KnobController:
    """Turns one knob for one binding. `trouble` belongs to the knob: failures are logged once, not in every round."""

    def __init__(self, enforcer: Enforcer, trouble: Trouble, stale_after: int) -> None:
        self.enforcer = enforcer
        self.trouble = trouble
        self.settled = False
        """Whether nothing is left to do: nothing failed, and no unknown target is becoming stale."""
        self._stale_after = stale_after
        self._ages = _StaleCounter(stale_after)
        self._named: tuple[Target, ...] = ()
        self._absent: tuple[Target, ...] = ()
        self._topology: Topology | None = None
        self._owners: dict[Target, str] = {}
        """Target -> id of the instance that it served in the last topology."""
        self._given: dict[Target, Value] = {}
        """Target -> our last value for it; another binding may have changed it since, as bindings share an enforcer."""

    def carry_out(self, order: Order, now: float) -> tuple[KnobTargets, list[AppliedChanges]]:
        """Write an order's values; return the targets and the changes.

        The targets include groups that the order no longer names but that still have our values.
        """
        aim, wanted = order.aim, order.wanted
        if self.enforcer.knob.per == "group":
            aim, wanted = self._with_absent(aim, wanted)
            return aim, self._turn(aim, wanted, NONE, now)
        return aim, self._turn(aim, wanted, self._in_other_hands(order), now)

    def _turn(self, aim: KnobTargets, wanted: Column, lost: Ints, now: float) -> list[AppliedChanges]:
        moved = self.enforcer.retarget(aim.targets)
        outcomes = self.enforcer.apply(self.enforcer.diff(aim.targets, wanted))
        turned = [AppliedChanges(outcomes.applied, outcomes.applied.rows, outcomes.failures)]
        failures = moved.failures + outcomes.failures
        for row, value in zip(outcomes.applied.rows.tolist(), outcomes.applied.after.tolist(), strict=True):
            self._given[aim.targets[row]] = value
        stale = self._ages.step(aim, wanted)
        too_old = f"unknown for more than {self._stale_after} rounds"
        for at, why in ((lost, "serves another instance"), (NONE if stale is None else stale, too_old)):
            if len(at):
                back = self._put_back(aim, at, f"{why}, put back as it was found")
                failures += back.failures
                turned.append(back)
        tell_left(moved)
        if failures:
            self.trouble.failed(now, failures[0])
            self.trouble.total += len(failures) - 1
        else:
            self.trouble.worked()
        self.settled = not failures and not self._ages.grow
        return [some for some in turned if len(some.at) or some.failures]

    def _in_other_hands(self, order: Order) -> Ints:
        """Return the positions of targets with our value that now serve an instance without a value in the order."""
        topology, aim = order.part.topology, order.aim
        if topology is self._topology:
            return NONE
        rows = (aim.rows - order.part.rows.start).tolist()
        before, self._topology = self._owners, topology
        self._owners = {target: topology.ids[row] for target, row in zip(aim.targets, rows, strict=True)}
        self._given = {target: value for target, value in self._given.items() if target in self._owners}
        unknown = missing(order.wanted)
        positions = [
            i
            for i, target in enumerate(aim.targets)
            if unknown[i]
            and target in self._given
            and before.get(target) != self._owners[target]
            and self.enforcer.wrote(target) == self._given[target]
        ]
        return np.array(positions, dtype=np.int64)

    def _with_absent(self, aim: KnobTargets, wanted: Column) -> tuple[KnobTargets, Column]:
        """Add groups that have our values and that the order does not name, with unknown priority.

        A later order may name them again, so they keep their values until they are stale.
        """
        if aim.targets != self._named:
            self._named = aim.targets
            self._absent = tuple(set(self.enforcer.held) - set(aim.targets))
        self._absent = tuple(target for target in self._absent if self.enforcer.holds(target))
        if not self._absent:
            return aim, wanted
        more = len(self._absent)
        unknown = np.full(more, np.nan)
        extended = KnobTargets(
            aim.targets + self._absent,
            np.concatenate([aim.priority, unknown]),
            np.concatenate([aim.rows, np.full(more, NOBODY)]),
            np.concatenate([aim.mine, np.ones(more, dtype=np.bool_)]),
        )
        return extended, np.concatenate([wanted, unknown])

    def _put_back(self, aim: KnobTargets, positions: Ints, why: str) -> AppliedChanges:
        at = {aim.targets[i]: i for i in positions.tolist()}
        outcomes = self.enforcer.restore(at)
        tell_left(outcomes)
        self._ages.again([at[failure.target] for failure in outcomes.failures])
        done = np.array([at[change.target] for change in outcomes.applied], dtype=np.int64)
        return AppliedChanges(outcomes.applied, done, outcomes.failures, why)


def tell_left(outcomes: Outcomes) -> None:
    """Log the values that were not put back because another program or user had changed them."""
    for change in outcomes.left:
        log.warning(
            "%s of %s is left at %s: another program has changed it since Treadle set it to %s",
            change.knob,
            label(change.target),
            change.after,
            change.before,
            extra={"knob": change.knob, "target": label(change.target)},
        )


_TOLD = np.iinfo(np.int64).min // 2
"""A count so far below the limit that a stale target is reported only once."""


class _StaleCounter:
    """Counts for how many rounds in a row each target has been unknown."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._targets: tuple[Target, ...] = ()
        self._count = np.zeros(0, dtype=np.int64)
        self._none = True
        """Whether all counts are 0."""

    @property
    def grow(self) -> bool:
        """Whether any target is unknown and not yet reported as stale."""
        return not self._none and bool((self._count > 0).any())

    def step(self, aim: KnobTargets, wanted: Column) -> Ints | None:
        """Count a round; return the positions of targets that have just become stale, None if there are none."""
        self._align(aim.targets)
        all_known = complete(wanted)
        if all_known and self._none:
            return None
        self._none = all_known
        self._count = np.where(missing(wanted) & aim.mine, self._count + 1, 0)
        stale: Ints = (self._count > self._limit).nonzero()[0]
        if not len(stale):
            return None
        self._count[stale] = _TOLD
        return stale

    def again(self, positions: list[int]) -> None:
        """Report these as stale again in the next round, since they could not be put back."""
        self._count[positions] = self._limit

    def _align(self, targets: tuple[Target, ...]) -> None:
        if targets is not self._targets and targets != self._targets:
            old = {self._targets[i]: int(self._count[i]) for i in np.flatnonzero(self._count)}
            self._count = np.array([old.get(target, 0) for target in targets], dtype=np.int64)
        self._targets = targets
