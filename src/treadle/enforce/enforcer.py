"""Sets the values of one knob and can put all of them back as they were found (Lachesis section 5.3).

Only values that differ are written, each write is read back, and errors are collected, not raised. The values found on
targets are remembered before the first write, so `restore` works whatever fails in between. With a journal, another
process can restore them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from treadle.enforce.changes import Change, Changes, Column, column_of, complete, diff, missing, same
from treadle.enforce.knob import Knob, Target, Value, label
from treadle.errors import EngineError, TargetGone, TreadleError
from treadle.model import Ints


@dataclass(frozen=True, slots=True)
class Failure:
    """A value that could not be set or put back."""

    target: Target
    knob: str
    wanted: Value
    error: Exception

    def __str__(self) -> str:
        return f"{self.knob} of {label(self.target)} to {self.wanted}: {str(self.error) or type(self.error).__name__}"


class Outcomes(NamedTuple):
    """What became of a set of changes that `apply` or `restore` has made."""

    applied: Changes
    """Changes that were written and read back; in a dry run, changes that would have been written."""
    failures: tuple[Failure, ...] = ()
    gone: tuple[Target, ...] = ()
    """Targets that have ended in the meantime, so there is nothing to write."""
    left: tuple[Change, ...] = ()
    """Values not put back, since another program has changed them: `before` is what we wrote, `after` the value now."""


@dataclass(slots=True)
class _Held:
    """The value found on a target before our first write to it, and the value that we have written."""

    found: Value
    ours: Value | None = None
    """The value read after our last write. None if that read failed: any current value then counts as ours."""


@dataclass
class _Tally:
    done: list[int] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    gone: list[Target] = field(default_factory=list)
    left: list[Change] = field(default_factory=list)

    def outcomes(self, changes: Changes) -> Outcomes:
        applied = changes if len(self.done) == len(changes) else changes.take(np.array(self.done, dtype=np.int64))
        return Outcomes(applied, tuple(self.failures), tuple(self.gone), tuple(self.left))


class WriteAhead(Protocol):
    """The interface of a log in which changes are recorded before they are made, as in `recovery.journal.Journal`."""

    def note(self, knob: Knob, found: Iterable[tuple[Target, Value]], wanted: Iterable[tuple[Target, Value]]) -> None:
        """Record, before a write, the values found on targets and the values to be written."""

    def correct(self, knob: Knob, seen: Iterable[tuple[Target, Value | None]]) -> None:
        """Record, after a failed write, the current values; None for a value that can't be read."""

    def back(self, knob: Knob, targets: Iterable[Target]) -> None:
        """Record that targets were put back."""


class Enforcer:
    """Carries out changes of one knob. A dry run reads values and only pretends to write them.

    `restore` only pretends, too. It leaves out targets that the dry run could not read, such as groups that only a real
    run makes. Each write is recorded in the `journal` first; a value that can't be recorded is not written.
    """

    def __init__(self, knob: Knob, *, dry_run: bool = False, journal: WriteAhead | None = None) -> None:
        self.knob = knob
        self.dry_run = dry_run
        self.journal = None if dry_run else journal
        self._write_and_read: Callable[[Target, Value], Value] | None = getattr(knob, "write_and_read", None)
        """The knob's own method for a write and a read in one step, if it has one.

        It is faster than two calls, which take most of the time of a round with many changes.
        """
        self._commit: Callable[[], None] | None = getattr(knob, "commit", None)
        self._targets: tuple[Target, ...] = ()
        self._current: Column = np.empty(0)
        self._rows: dict[Target, int] | None = {}
        self._held: dict[Target, _Held] = {}
        self._nothing_done = Outcomes(self._back(()))

    @property
    def held(self) -> tuple[Target, ...]:
        """The targets that `restore` would put back."""
        return tuple(self._held)

    def holds(self, target: Target) -> bool:
        """Return whether `restore` would put the target back."""
        return target in self._held

    def wrote(self, target: Target) -> Value | None:
        """Return a held target's value after our last write; None if not held or unknown."""
        held = self._held.get(target)
        return None if held is None else held.ours

    def diff(self, targets: tuple[Target, ...], wanted: Column) -> Changes:
        """Return the changes that give `targets` the `wanted` values. Only current values that are unknown are read.

        If the next round passes the same tuple of targets, the known values need not be put into its order again.
        """
        self._align(targets, wanted)
        if len(wanted) == len(targets) and not complete(self._current):
            unknown = (missing(self._current) & ~missing(wanted)).nonzero()[0]
            if len(unknown):
                wanted = self._read(unknown, wanted)
        return diff(targets, wanted, self._current, knob=self.knob.name)

    def apply(self, changes: Changes) -> Outcomes:
        """Write the changes and read them back."""
        if self.dry_run:
            self._pretend(changes)
            return Outcomes(changes)
        tally = _Tally()
        seen: list[Value | None] = [None] * len(changes)
        noted = self._note_down(changes)
        try:
            for i, (row, value) in enumerate(zip(changes.rows.tolist(), changes.after.tolist(), strict=True)):
                target = changes.targets[row]
                try:
                    if self._turn(target, value, noted=target in noted):
                        tally.done.append(i)
                    seen[i] = value
                except TargetGone:
                    tally.gone.append(target)
                    self._held.pop(target, None)
                except Exception as error:
                    tally.failures.append(Failure(target, self.knob.name, value, error))
        finally:  # also if a signal handler raises: targets that were not reached are unknown and are read again
            self._note(changes, column_of(seen, self._current))
            self._note_what_came(tally)
            if self._commit is not None:
                self._commit()
        return tally.outcomes(changes)

    def adopt(self, target: Target, found: Value, ours: Value | None) -> None:
        """Hold a target that another process has written to, so that `restore` puts back what that process found.

        `ours` is the value that the other process wrote. With None, any current value counts as written by it.
        """
        self._held[target] = _Held(found, ours)

    def restore(self, targets: Iterable[Target] | None = None) -> Outcomes:
        """Put back the found values, for all targets or some. A target that fails is held for the next call."""
        if targets is None:
            targets = (*self._held, *self._targets) if self.dry_run else self.held
        named = dict.fromkeys(targets)
        for target in named:  # so the next diff reads these values again, also those that a dry run pretended
            self._forget_current(target)
        chosen = tuple(target for target in named if target in self._held)
        changes = self._back(chosen)
        tally = _Tally()
        for i, target in enumerate(chosen):
            held = self._held[target]
            try:
                seen = self._seen(target, held)
                if same(seen, held.found):
                    pass
                elif held.ours is not None and not same(seen, held.ours):
                    tally.left.append(Change(target, self.knob.name, held.ours, seen))
                else:
                    self._put(target, held.found, held)
                    tally.done.append(i)
                del self._held[target]
            except TargetGone:
                tally.gone.append(target)
                del self._held[target]
            except Exception as error:
                tally.failures.append(Failure(target, self.knob.name, held.found, error))
        self._note_back([target for target in chosen if target not in self._held])
        if self._commit is not None:
            self._commit()
        return tally.outcomes(changes)

    def retarget(self, targets: tuple[Target, ...]) -> Outcomes:
        """Use these targets from now on. Held targets that are not among them are put back, and then forgotten."""
        if targets is self._targets or targets == self._targets:
            return self._nothing_done
        staying = set(targets)
        self._align(targets, self._current)
        return self.restore([target for target in self._held if target not in staying])

    def _turn(self, target: Target, value: Value, *, noted: bool) -> bool:
        """Set one value. Return False, without a write, if the target is not held and has that value already."""
        held = self._held.get(target)
        if held is None:
            found = self.knob.read(target)
            if same(found, value):
                return False
            held = _Held(found, found)
        if not noted and self.journal is not None:
            self.journal.note(self.knob, [(target, held.found)], [(target, value)])
        self._held[target] = held
        self._put(target, value, held)
        return True

    def _note_down(self, changes: Changes) -> set[Target]:
        """Record all planned writes in the journal at once; return the targets for which that was done.

        The others are recorded one by one later, so that each error is reported for its target.
        """
        if self.journal is None or not len(changes):
            return set()
        new: dict[Target, _Held] = {}
        wanted: list[tuple[Target, Value]] = []
        for row, value in zip(changes.rows.tolist(), changes.after.tolist(), strict=True):
            target = changes.targets[row]
            if target not in self._held:
                try:
                    found = self.knob.read(target)
                except Exception:
                    continue
                if same(found, value):
                    continue
                new[target] = _Held(found, found)
            wanted.append((target, value))
        try:
            self.journal.note(self.knob, [(target, held.found) for target, held in new.items()], wanted)
        except TreadleError:
            return set()
        self._held.update(new)
        return {target for target, _ in wanted}

    def _note_what_came(self, tally: _Tally) -> None:
        """Record in the journal the targets that have ended and the current values after failed writes."""
        if tally.gone:
            self._note_back(tally.gone)
        if tally.failures and self.journal is not None:
            failed = [failure.target for failure in tally.failures if failure.target in self._held]
            with suppress(TreadleError):  # on error the journal keeps the last two values as ours
                self.journal.correct(self.knob, [(target, self._held[target].ours) for target in failed])

    def _note_back(self, targets: Sequence[Target]) -> None:
        if targets and self.journal is not None:
            with suppress(TreadleError):  # harmless: a restore does not write a target that has its found value
                self.journal.back(self.knob, targets)

    def _pretend(self, changes: Changes) -> None:
        """Remember the found values, and the values that a real run would have written."""
        columns = (changes.rows.tolist(), changes.before.tolist(), changes.after.tolist())
        for row, before, after in zip(*columns, strict=True):
            held = self._held.get(changes.targets[row])
            if held is not None:
                held.ours = after
            elif before is not None and before == before:
                self._held[changes.targets[row]] = _Held(before, after)
        self._note(changes, changes.after)

    def _seen(self, target: Target, held: _Held) -> Value:
        """Read the current value; in a dry run the pretended one, unless another program has changed the value."""
        seen = self.knob.read(target)
        return held.ours if self.dry_run and held.ours is not None and same(seen, held.found) else seen

    def _put(self, target: Target, value: Value, held: _Held) -> None:
        if self.dry_run:
            return
        held.ours = None
        seen: Value | None = None
        try:
            if self._write_and_read is not None:
                seen = self._write_and_read(target, value)
            else:
                self.knob.write(target, value)
        except TargetGone:
            raise
        except Exception:
            self._look(target, held)  # a write that failed may still have done something
            raise
        seen = held.ours = self.knob.read(target) if seen is None else seen
        if seen != value and not same(seen, value):
            raise EngineError(
                f"wrote {value}, but it reads {seen}", remedy="check whether another program sets it, and its limits"
            )

    def _look(self, target: Target, held: _Held) -> None:
        try:
            held.ours = self.knob.read(target)
        except TargetGone:
            raise
        except Exception:  # the caller reports the failed write; `held.ours` stays None
            return

    def _read(self, rows: Ints, wanted: Column) -> Column:
        """Read unknown values. A target that has ended is removed from `wanted`; other errors are left to `apply`.

        In a dry run such a target stays in `wanted`: it may be a group that only a real run makes.
        """
        gone: list[int] = []
        for row in rows.tolist():
            try:
                self._current[row] = self.knob.read(self._targets[row])
            except TargetGone:
                gone.append(row)
            except Exception:
                continue
        if gone and not self.dry_run:
            wanted = wanted.copy()
            wanted[gone] = _nothing(wanted)
        return wanted

    def _align(self, targets: tuple[Target, ...], like: Column) -> None:
        """Bring the known values into the order of `targets`."""
        alike = self._current.dtype == like.dtype
        if alike and (targets is self._targets or targets == self._targets):
            self._targets = targets
            return
        current = _unknown(len(targets), like)
        if alike and len(self._targets):
            rows = self._index()
            place = np.array([rows.get(target, -1) for target in targets], dtype=np.int64)
            current[place >= 0] = self._current[place[place >= 0]]
        self._targets, self._current, self._rows = targets, current, None

    def _index(self) -> dict[Target, int]:
        """Return target -> row; built on first use, since a steady round needs none."""
        if self._rows is None:
            self._rows = {target: row for row, target in enumerate(self._targets)}
        return self._rows

    def _note(self, changes: Changes, values: Column) -> None:
        if changes.targets is self._targets:
            self._current[changes.rows] = values
            return
        rows = self._index()
        for row, value in zip(changes.rows.tolist(), values.tolist(), strict=True):
            mine = rows.get(changes.targets[row])
            if mine is not None:
                self._current[mine] = value

    def _forget_current(self, target: Target) -> None:
        row = self._index().get(target)
        if row is not None:
            self._current[row] = _nothing(self._current)

    def _back(self, targets: Sequence[Target]) -> Changes:
        """Return the changes that set these held targets to their found values."""
        before = np.array([self._held[target].ours for target in targets], dtype=np.object_)
        after = np.array([self._held[target].found for target in targets], dtype=np.object_)
        return Changes(self.knob.name, targets, np.arange(len(targets)), before, after)


def _nothing(column: Column) -> float | None:
    return None if column.dtype == np.object_ else np.nan


def _unknown(size: int, like: Column) -> Column:
    return column_of([None] * size, like)
