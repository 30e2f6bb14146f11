"""The journal: found values, on disk before the first write, so that another process can restore them after a kill.

Lines are only appended. All lines of a batch of changes are one write(), which survives the death of the process. After
a crash of the machine there is nothing to restore. `journal_book` defines the lines.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from treadle.enforce.knob import Knob, Target, Value
from treadle.enforce.recovery.journal_book import SUFFIX, Book, Process, Recipe, as_text, host, plain, start_time, world
from treadle.enforce.recovery.journal_folder import folders_for_new_journals, journal_folders, make_private
from treadle.errors import EngineError, RightsError, TreadleError
from treadle.linux.files.open_files import open_file

log = logging.getLogger("treadle.enforce")

ROOMY = 1 << 18
"""Size in bytes above which the file is compacted; the next limit is four times the new size, if that is more."""
LOOK = 0.5
"""Seconds between two checks of whether the file is still at its path."""


class Keeper(Protocol):
    """Puts back the values in the journal after the owner of the journal has ended: a `Guardian`."""

    def check(self) -> None:
        """Make sure that the keeper runs. Called in each round and before the first write of a knob."""

    def stop(self) -> None:
        """End the keeper: nothing is left to put back."""


class Journal:
    """The journal of this process. It is removed when closed, unless there is still something to put back.

    Only knobs with `options` are recorded: from these another process can make the knob again. The settings of other
    knobs, such as a simulator's, end with their process. Several threads may use a journal.
    """

    def __init__(self, path: Path) -> None:
        """Use `Journal.open`."""
        self.path = path
        self.keeper: Keeper | None = None
        self._lock = threading.RLock()
        """Held by the thread of the rounds or the one that finds new processes. Re-entrant, for `keeper.check`."""
        self._book = Book(Process(os.getpid(), start_time(os.getpid())), world=world(), host=host())
        self._numbers: dict[tuple[int, Target], int] = {}
        self._known: dict[int, tuple[Knob, int]] = {}
        """Python's `id` of a knob -> the knob (kept alive, so no other knob gets this id) and its recipe's number."""
        self._last = 0
        self._torn = False
        self._size = 0
        self._limit = ROOMY
        self._file = -1
        self._checked = -math.inf
        self._anew()

    @classmethod
    def open(cls, folder: Path | None = None) -> Journal:
        """Create a journal in `folder`; without it, in the first of the usual folders where that is possible."""
        problems: list[TreadleError] = []
        for each in folders_for_new_journals() if folder is None else [folder]:
            try:
                make_private(each)
                return cls(_free_path(each))
            except TreadleError as error:
                problems.append(error)
        remedy = "set TREADLE_STATE to a folder of yours"
        raise problems[0] if problems else RightsError("there is no folder for a journal", remedy=remedy)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of targets that are not put back yet."""
        return len(self._book.kept)

    @property
    def realtime(self) -> bool:
        """Whether the knob for real-time priorities is in the journal, so that threads may have such priorities."""
        return self._book.uses_realtime

    def tend(self) -> None:
        """Check that the file is at its path and that the keeper runs. Call it in each round.

        After an error, nothing would put values back if this process were killed, so the caller must do that now.
        """
        with self._lock:
            if time.monotonic() - self._checked >= LOOK:
                self._stay_in_place()
            if self.keeper is not None:
                self.keeper.check()

    def note(self, knob: Knob, found: Iterable[tuple[Target, Value]], wanted: Iterable[tuple[Target, Value]]) -> None:
        """Record, before a write, the values found on new targets and the values to be written.

        If that fails, nothing is recorded, and nothing may be written.
        """
        with self._lock:
            recipe, lines = self._recipe(knob)
            if recipe is None:
                return
            new_knob, new = bool(lines), []
            for target, value in found:
                if (recipe, target) not in self._numbers:
                    self._last += 1
                    lines.append(["found", self._last, recipe, plain(target), value])
                    self._numbers[recipe, target] = self._last
                    new.append(target)
            lines.append(self._values("set", recipe, wanted))
            try:
                self._write(lines)
            except EngineError:
                for target in new:
                    del self._numbers[recipe, target]
                if new_knob:
                    del self._known[id(knob)]
                raise
            if new_knob and self.keeper is not None:
                self.keeper.check()

    def correct(self, knob: Knob, seen: Iterable[tuple[Target, Value | None]]) -> None:
        """Record, after a failed write, the current values; None for a value that can't be read."""
        with self._lock:
            recipe, _ = self._recipe(knob)
            if recipe is not None:
                self._write([self._values("are", recipe, seen)])

    def back(self, knob: Knob, targets: Iterable[Target]) -> None:
        """Record that targets were put back, have ended, or are no longer needed."""
        with self._lock:
            recipe, _ = self._recipe(knob)
            if recipe is not None:
                popped = [self._numbers.pop((recipe, target), None) for target in targets]
                numbers = [number for number in popped if number is not None]
                if numbers:
                    self._write([["back", numbers]])

    def kept_by(self, guardian: Process) -> None:
        """Record the guardian, the process that puts values back if this process can't."""
        with self._lock:
            self._write([["guardian", *guardian]])

    def leave(self) -> None:
        """Record that all changes remain on purpose, until a later process puts them back."""
        with self._lock:
            self._write([["left"]])

    def close(self) -> None:
        """Close the journal. Values not put back stay in its file, for the guardian and `treadle restore`."""
        if self._file < 0 or os.getpid() != self._book.owner.pid:  # a forked child has the file, but does not own it
            return
        if self._book.kept:
            with suppress(TreadleError):
                self._stay_in_place()
        os.close(self._file)
        self._file = -1
        if self._book.kept:
            return
        with suppress(OSError):  # the folder may be gone, or belong to another user by now
            self.path.unlink()
        if self.keeper is not None:
            self.keeper.stop()

    def _recipe(self, knob: Knob) -> tuple[int | None, list[list[Any]]]:
        """Return the number of the knob's recipe and, if the recipe is new, the line that records it.

        The number is None for a knob without `options`.
        """
        known = self._known.get(id(knob))
        if known is not None:
            return known[1], []
        options = getattr(knob, "options", None)
        if options is None:
            return None, []
        recipe = Recipe(knob.name, dict(options))
        for number, known_recipe in self._book.recipes.items():
            if known_recipe == recipe:
                self._known[id(knob)] = knob, number
                return number, []
        number = len(self._book.recipes)
        self._known[id(knob)] = knob, number
        return number, [["knob", number, *recipe]]

    def _values(self, kind: str, recipe: int, values: Iterable[tuple[Target, Value | None]]) -> list[Any]:
        pairs = [(self._numbers.get((recipe, target)), value) for target, value in values]
        pairs = [pair for pair in pairs if pair[0] is not None]
        return [kind, [number for number, _ in pairs], [value for _, value in pairs]]

    def _write(self, lines: list[list[Any]]) -> None:
        text = as_text(lines)
        if self._torn:  # the last line may be incomplete, so begin a new one
            text = b"\n" + text
        try:
            self._torn = os.write(self._file, text) != len(text)
        except OSError as error:
            self._torn = True
            raise EngineError(
                f"can't be written: {error}", where=f"journal {self.path}", remedy="make room on its disk"
            ) from error
        if self._torn:
            raise EngineError("was written in part only", where=f"journal {self.path}", remedy="make room on its disk")
        for line in lines:
            self._book.add(line)
        self._size += len(text)
        if self._size > self._limit:
            self._anew()

    def _anew(self) -> None:
        """Replace the file by one that has only the values that are still to be put back."""
        if self._file >= 0 and not _is_at(self.path, self._file):  # then the folder may not be ours any more, either
            self._stay_in_place()
            return
        text = as_text(self._book.lines())
        try:
            file = _write_new(self.path, text)
        except OSError as error:
            if self._file >= 0:  # keep the old file
                self._limit = 2 * self._size
                return
            raise EngineError(
                f"can't be written: {error}", where=f"journal {self.path}", remedy="make room on its disk"
            ) from error
        self._use(file, len(text))

    def _use(self, file: int, size: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._torn, self._size = file, False, size
        self._limit = max(ROOMY, 4 * size)

    def _stay_in_place(self) -> None:
        """Write the file anew if it was removed or replaced, as $XDG_RUNTIME_DIR is when a user logs out.

        If the folder can't be made again, or another user has made it, another folder is used.
        """
        self._checked = time.monotonic()
        if self._file < 0 or _is_at(self.path, self._file):
            return
        text, lost, problems = as_text(self._book.lines()), self.path, []
        for folder in dict.fromkeys([lost.parent, *journal_folders()]):
            path = lost if folder == lost.parent else _free_path(folder)
            try:
                make_private(folder)
                file = _write_new(path, text)
            except (OSError, TreadleError) as error:
                problems.append(str(error))
                continue
            self.path = path
            self._use(file, len(text))
            log.warning(
                "the journal %s was removed; it was written again as %s", lost, path, extra={"journal": str(path)}
            )
            return
        raise EngineError(
            f"was removed, and can't be written again: {problems[0]}",
            where=f"journal {lost}",
            remedy="set TREADLE_STATE to a folder that you own and nothing removes",
        )


def _free_path(folder: Path) -> Path:
    """Return a path in the folder where there is no journal yet."""
    number = 0
    while (path := folder / f"{os.getpid()}-{number}{SUFFIX}").exists():
        number += 1
    return path


def _write_new(path: Path, text: bytes) -> int:
    """Write a file, replacing any other in one step; return its descriptor, open for appending."""
    new = path.with_suffix(".new")
    file = open_file(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
    try:
        if os.write(file, text) != len(text):
            raise OSError("no space for the whole file")
        os.rename(new, path)
    except OSError:
        os.close(file)
        raise
    return file


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(file))
    except OSError:
        return False
