"""The function f for slots of a gate (Haren section 4.1): by name, by `module:name`, or a function of the user.

An f assigns each row of a snapshot to one of the groups 0 to `groups` - 1, or to none. A result that does not fit is
refused as a whole, and the assignment before stays in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from treadle import plugins
from treadle.decide.assign import ASSIGNERS, Assigner, AssignLoadBalance, assigner, load_of
from treadle.decide.policy import Policy
from treadle.errors import ConfigError, TreadleError
from treadle.model import Floats
from treadle.values import Schedule, Snapshot

log = logging.getLogger("treadle.decide")

GROUP = "treadle.assigners"
"""The entry points of other packages: a function f, or a class that is created with no arguments and called as f."""
NONE = "none"
NOBODY = -1.0
"""The group of rows that may use any slot."""
WORTH = 0.9
"""`load-balance` keeps its assignment unless another one lowers the highest load of a group to this part of it."""

Groups = Sequence[float] | Floats
Function = Callable[[Snapshot, int], Groups]
"""f(snapshot, groups): for each row of the snapshot the number of a group, below `groups`; -1 or NaN for any slot."""


class Chosen(NamedTuple):
    """An f and its name."""

    name: str
    function: Function


def assigner_of(spec: object) -> Chosen:
    """Return the f that a name or an object stands for; ConfigError if there is none."""
    if isinstance(spec, str):
        return Chosen(spec, _named(spec))
    if isinstance(spec, Assigner):
        return Chosen(spec.name, _of(spec))
    if callable(spec) and not isinstance(spec, type):
        return Chosen(str(getattr(spec, "__name__", type(spec).__name__)), spec)
    raise ConfigError(
        f"assign can't be {spec!r}", remedy=f"use one of {', '.join(names())}, or a function of snapshot and groups"
    )


def names() -> list[str]:
    """Return the names of all f, those of Treadle first."""
    return [NONE, *ASSIGNERS, *_plug_ins()]


def checked(found: object, snapshot: Snapshot, groups: int) -> Floats:
    """Return what an f has returned, with -1 for NaN; ConfigError if it is not a group for each row."""
    rows = len(snapshot.topology)
    try:
        owner = np.array(found, dtype=np.float64)
    except (TypeError, ValueError):
        raise _wrong(f"returned {type(found).__name__}, not a number for each row") from None
    if owner.ndim != 1:
        raise _wrong(f"returned {type(found).__name__}, not a number for each row")
    if len(owner) != rows:
        raise _wrong(f"returned {len(owner)} numbers for {rows} rows")
    owner[np.isnan(owner)] = NOBODY
    odd = np.flatnonzero((owner != np.rint(owner)) | (owner < NOBODY) | (owner >= groups))
    if len(odd):
        row = int(odd[0])
        raise _wrong(f"returned group {owner[row]:g} for '{snapshot.topology.ids[row]}', of groups 0 to {groups - 1}")
    return owner


class Assignment(Policy):
    """The policy for the knob `owner`: calls f, and keeps the assignment before if f fails. `groups` counts groups."""

    name = "assign"
    wants = ("busy", "cost", "rate", "queue")

    def __init__(self, chosen: Chosen, groups: Callable[[], int]) -> None:
        self.chosen = chosen
        self.loads: Mapping[str, float] = {}
        """By row: seconds of work per second at the last decision; rows with an unknown load are left out."""
        self.refused = ""
        """Why the last result of f was refused; empty if it was not."""
        self._groups = groups
        self._snapshot: Snapshot | None = None
        self._last: dict[str, float] = {}

    def use(self, chosen: Chosen) -> None:
        """Call another f from the next decision on."""
        self.chosen, self.refused = chosen, ""

    def check(self, chosen: Chosen) -> None:
        """Call an f with the last snapshot, if there is one, and raise a ConfigError if it fails."""
        if self._snapshot is not None:
            try:
                checked(chosen.function(self._snapshot, self._groups()), self._snapshot, self._groups())
            except TreadleError:
                raise
            except Exception as error:
                raise _wrong(f"raised {type(error).__name__}: {error}", chosen.name) from error

    def decide(self, snapshot: Snapshot) -> Schedule:
        self._snapshot = snapshot
        ids, groups = snapshot.topology.ids, self._groups()
        load = load_of(snapshot)
        self.loads = {ids[row]: float(load[row]) for row in np.flatnonzero(~np.isnan(load))}
        try:
            owner = checked(self.chosen.function(snapshot, groups), snapshot, groups)
        except Exception as error:
            self._refuse(error)
            owner = np.array([self._last.get(name, NOBODY) for name in ids])
        else:
            self.refused = ""
            self._last = dict(zip(ids, owner.tolist(), strict=True))
        return Schedule(owner, reason=f"{self.chosen.name}, {groups} groups")

    def _refuse(self, error: Exception) -> None:
        """Log a failure of f, once until f works again or fails otherwise."""
        why = error.message if isinstance(error, ConfigError) else f"raised {type(error).__name__}: {error}"
        if why != self.refused:
            log.warning(
                "assign '%s' %s; the assignment before stays in force",
                *(self.chosen.name, why),
                exc_info=None if isinstance(error, ConfigError) else error,
                extra={"assign": self.chosen.name},
            )
        self.refused = why


class _LoadBalance(AssignLoadBalance):
    """Load balance that stays as it is until another assignment is better by more than noise: see `WORTH`."""

    def __init__(self) -> None:
        super().__init__(1)
        self._last: tuple[tuple[str, ...], int, Floats] = ((), 0, np.empty(0))

    def decide(self, snapshot: Snapshot) -> Schedule:
        new = super().decide(snapshot)
        ids, threads, before = self._last
        if (ids, threads) == (snapshot.topology.ids, self.threads):
            load = np.nan_to_num(load_of(snapshot), nan=0.0)
            peaks = [np.bincount(owner.astype(np.int64), load, threads).max() for owner in (before, new.scalar)]
            if peaks[1] > WORTH * peaks[0]:
                return Schedule(before, reason="kept")
        self._last = (snapshot.topology.ids, self.threads, new.scalar)
        return new


def workers_by_group(before: Sequence[int], living: Sequence[int]) -> list[int]:
    """Return the worker of each group: a new worker takes the group of a lost one, else the last group's worker does.

    So as few queries as possible are in another worker's group afterwards.
    """
    new = [worker for worker in living if worker not in before]
    workers = [worker if worker in living else new.pop(0) if new else None for worker in before]
    found = [*workers, *new]
    while None in found:
        last = found.pop()
        if last is not None:
            found[found.index(None)] = last
    return [worker for worker in found if worker is not None]


def _named(name: str) -> Function:
    if name == NONE:
        return lambda snapshot, _: np.full(len(snapshot.topology), NOBODY)
    if name == AssignLoadBalance.name.removeprefix("assign-"):
        return _of(_LoadBalance())
    if name in ASSIGNERS:
        return _of(assigner(name, 1, np.random.default_rng(0)))
    if (point := _plug_ins().get(name)) is not None:
        return _made(plugins.load(point), point.value, plugins.called(point))
    if ":" in name:
        return _made(plugins.imported(name), name, "assign")
    raise ConfigError(f"there is no assignment '{name}'", remedy=plugins.suggestion(name, names()))


def _made(found: Any, spec: str, where: str) -> Function:
    """Return the f that an imported object is, or that an object of an imported class is."""
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise plugins.failed(where, "can't be made", error) from error
    if isinstance(found, Assigner):
        return _of(found)
    if not callable(found):
        raise ConfigError(
            f"'{spec}' can't be called", where=where, remedy="name a function of snapshot and groups, or a class of one"
        )
    function: Function = found
    return function


def _of(made: Assigner) -> Function:
    def assign(snapshot: Snapshot, groups: int) -> Floats:
        made.set_threads(groups)
        return made.decide(snapshot).scalar

    return assign


def _plug_ins() -> dict[str, Any]:
    return dict(plugins.find(GROUP, "an assignment", (NONE, *ASSIGNERS)))


def _wrong(what: str, name: str = "") -> ConfigError:
    remedy = "return a group for each row of the snapshot, -1 for any slot"
    return ConfigError(what, where=f"assign '{name}'" if name else "assign", remedy=remedy)
