"""Finds the journals of killed processes, and puts back what those processes have changed.

The enforcer decides for each value whether it may be put back. This module decides only the order: real-time priorities
first, so that all other threads can run, and the group of each thread last.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from treadle.enforce import kernel
from treadle.enforce.changes import Changes, same
from treadle.enforce.enforcer import Enforcer, Failure, Outcomes
from treadle.enforce.knob import Knob, Value
from treadle.enforce.recovery import journal_book
from treadle.enforce.recovery.journal_book import REALTIME, SUFFIX, Book, Kept, Recipe
from treadle.enforce.recovery.journal_folder import is_private, journal_folders
from treadle.enforce.recovery.new_threads import settle_born
from treadle.errors import EngineError, RightsError
from treadle.model import ThreadRef

log = logging.getLogger("treadle.enforce")

MEMBERSHIP = "group"
Make = Callable[[Recipe], Knob]


def leftovers(folders: Sequence[Path] | None = None, *, pids: Collection[int] | None = None) -> list[Path]:
    """Return the journals of this user for which owner and guardian are both dead.

    A journal of an earlier boot of this machine is useless, and is removed. If the owner left its changes in place on
    purpose and `pids` is given, the journal is included only if it has threads of one of these processes.
    """
    here = journal_book.world()
    found: list[Path] = []
    for path in journals(folders):
        with suppress(OSError):
            book = journal_book.read(path)
            if book.world == here and not book.owner.alive and not book.guardian.alive:
                if pids is None or not book.left or not _pids(book).isdisjoint(pids):
                    found.append(path)
            elif book.world.partition(" ")[0] != here.partition(" ")[0] and book.host in ("", journal_book.host()):
                _remove(path)
    return found


def journals(folders: Sequence[Path] | None = None) -> Iterator[Path]:
    """Yield the journals in folders that only this user can write to."""
    for folder in journal_folders() if folders is None else folders:
        if is_private(folder):
            yield from sorted(folder.glob(f"*{SUFFIX}"))


def _pids(book: Book) -> set[int]:
    return {kept.target.pid for kept in book.kept.values() if isinstance(kept.target, ThreadRef)}


def put_back(path: Path, *, make: Make | None = None) -> tuple[Outcomes, ...]:
    """Put back all values that a dead process has changed, knob by knob. The journal is removed if nothing failed.

    If two processes call this, the second one finds nothing to do. It is an error if the owner is alive, since it would
    change the values again.
    """
    with _alone(path) as file:
        if file is None:
            return ()
        book = journal_book.read_file(file)
        if book.owner.alive:
            remedy = "end that process; it then puts back its changes itself"
            raise EngineError(f"process {book.owner.pid} still runs", where=f"journal {path}", remedy=remedy)
        done = _put_back(book, make_again if make is None else make)
        if not any(outcomes.failures for outcomes in done):
            _remove(path)
    _tell(book, done)
    return done


def take_off_realtime(path: Path) -> tuple[Outcomes, ...]:
    """Put back only the real-time priorities, also if the owner is alive: an owner that stands still can't do that.

    The journal is not changed. If the owner runs again, its later writes take effect as usual.
    """
    book = journal_book.read(path)
    if book.left:
        return ()
    book.recipes = {number: recipe for number, recipe in book.recipes.items() if recipe.name == REALTIME}
    return _put_back(book, make_again)


def make_again(recipe: Recipe) -> Knob:
    """Make the same knob as another process had, from its recipe."""
    if recipe.name in kernel.NAMES:
        return kernel.make(recipe.name, **recipe.options)
    from treadle.enforce import registry  # imported here: it reads the installed packages, too slow for the guardian

    return registry.get(recipe.name).make()


def _put_back(book: Book, make: Make) -> tuple[Outcomes, ...]:
    done: list[Outcomes] = []
    knobs: list[Knob] = []
    for number in sorted(book.recipes, key=lambda number: _order(book.recipes[number].name, number)):
        recipe = book.recipes[number]
        mine = [kept for kept in book.kept.values() if kept.recipe == number]
        try:
            knob = make(recipe)
        except Exception as error:
            done.append(_all_failed(recipe.name, mine, error))
            continue
        knobs.append(knob)
        enforcer = Enforcer(knob)
        for kept in mine:
            if kept.ours:  # else the target was recorded for its children, and never written to
                enforcer.adopt(kept.target, kept.found, _ours(knob, kept))
        done.append(enforcer.restore())
        settle_born(knob, mine, book.owner.start_time)
    for knob in knobs:
        close = getattr(knob, "close", None)
        if close is not None:
            with suppress(Exception):  # an empty group that remains does no harm, and a later process may remove it
                close()
    return tuple(done)


def _order(name: str, number: int) -> tuple[int, int]:
    """Return a sort key for knobs: real-time first, groups of threads last; among the others, the newest first."""
    return (0 if name == REALTIME else 2 if name == MEMBERSHIP else 1), -number


def _ours(knob: Knob, kept: Kept) -> Value | None:
    """Return `ours` for `Enforcer.adopt`: None, for any value, if the dead process may have written the current value.

    Otherwise it is the last recorded value, so the current one is left alone as that of another program. Two values may
    be recorded, since the process may have died between recording a value and writing it.
    """
    values = [value for value in kept.ours if value is not None]
    if len(values) < len(kept.ours):
        return None
    try:
        seen = knob.read(kept.target)
    except Exception:  # the enforcer gets this error too, and reports it
        return values[-1]
    return None if any(same(seen, value) for value in values) else values[-1]


def _all_failed(name: str, mine: list[Kept], error: Exception) -> Outcomes:
    nothing = np.empty(0, dtype=np.object_)
    failures = tuple(Failure(kept.target, name, kept.found, error) for kept in mine)
    return Outcomes(Changes(name, (), np.empty(0, dtype=np.int64), nothing, nothing), failures)


@contextmanager
def _alone(path: Path) -> Iterator[int | None]:
    """Open and lock a journal, so that one process at a time restores from it; yield None if it was removed by now."""
    try:
        file = journal_book.open_journal(path, os.O_RDWR)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        remedy = "run as the journal's owner, and let only that user write to it"
        raise RightsError(f"can't be read: {error}", where=f"journal {path}", remedy=remedy) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file if _is_still(path, os.fstat(file)) else None
    finally:
        os.close(file)


def _is_still(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(found, path.lstat())
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    for each in (path.with_suffix(".new"), path):
        each.unlink(missing_ok=True)


def _tell(book: Book, done: tuple[Outcomes, ...]) -> None:
    count = sum(len(outcomes.applied) for outcomes in done)
    log.info("put back %d values that process %d had changed", count, book.owner.pid, extra={"put_back": count})
    for outcomes in done:
        for failure in outcomes.failures:
            log.warning("could not put back %s", failure, extra={"knob": failure.knob})
