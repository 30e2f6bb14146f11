"""What was found, on disk before the first write, so that another process can put it back when this one is killed.

It knows knobs by name and options, and what each target had and was given; not how a knob works. Lines of JSON are only
ever added, a batch by one write, which survives the death of the writer; that of the machine leaves nothing to restore.
"""

from __future__ import annotations

import json
import os
import select
import stat
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from treadle.enforce.kernel.guard import thread_ref
from treadle.enforce.knob import Knob, Target, Value
from treadle.errors import EngineError, RightsError, TreadleError
from treadle.model import Role, ThreadRef

FORMAT = 1
SUFFIX = ".journal"
ROOMY = 1 << 18
"""Bytes from which on it is written anew, without what was put back; four times what it then had, if that is more."""
REALTIME = "rt"
"""The knob whose threads can keep all others from running."""


class Process(NamedTuple):
    """A process; its start time tells it from a later one with the same id."""

    pid: int
    start_time: int

    @property
    def alive(self) -> bool:
        """Whether it runs; one that is dead but not yet waited for does not."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            return start_time(self.pid) == self.start_time and not ended.poll(0)
        finally:
            os.close(handle)


NOBODY = Process(0, 0)


class Recipe(NamedTuple):
    """What makes a knob again in another process."""

    name: str
    options: Mapping[str, Any]


@dataclass(slots=True)
class Kept:
    """A target that we write to: what it had, and the values it may have had from us since, the last one last.

    There are two of them between what is noted and what is done; None is anything, after a write that went wrong.
    """

    recipe: int
    target: Target
    found: Value
    ours: tuple[Value | None, ...] = ()


@dataclass
class Book:
    """All that a journal says."""

    owner: Process = NOBODY
    guardian: Process = NOBODY
    world: str = ""
    recipes: dict[int, Recipe] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    left: bool = False
    """Whether its owner has ended and meant it all to stay as it is."""

    @property
    def uses_realtime(self) -> bool:
        return any(recipe.name == REALTIME for recipe in self.recipes.values())

    def lines(self) -> list[list[Any]]:
        """The same again, with not a line too many."""
        lines: list[list[Any]] = [["owner", FORMAT, *self.owner, self.world], ["guardian", *self.guardian]]
        lines += [["knob", number, name, options] for number, (name, options) in self.recipes.items()]
        for number, kept in self.kept.items():
            lines.append(["found", number, kept.recipe, _plain(kept.target), kept.found])
            lines += [["set", [number], [value]] for value in kept.ours]
        return [*lines, ["left"]] if self.left else lines

    def add(self, line: list[Any]) -> None:
        """Take in one line."""
        kind, *rest = line
        if kind == "owner":
            self.owner, self.world = Process(*rest[1:3]), rest[3]
        elif kind == "guardian":
            self.guardian = Process(*rest)
        elif kind == "knob":
            self.recipes[rest[0]] = Recipe(rest[1], rest[2])
        elif kind == "found":
            number, recipe, target, found = rest
            self.kept[number] = Kept(recipe, _target(target), found)
        elif kind in ("set", "are"):
            for number, value in zip(*rest, strict=True):
                kept = self.kept[number]
                kept.ours = (*kept.ours[-1:], value) if kind == "set" else (value,)
        elif kind == "left":
            self.left = True
        elif kind == "back":
            for number in rest[0]:
                self.kept.pop(number, None)


class Keeper(Protocol):
    """Somebody who puts back what the journal says when its owner is gone."""

    def check(self) -> None:
        """See to it that there is one. Called once a round, and before the first write of a knob."""

    def stop(self) -> None:
        """There is nothing left to put back."""


class Journal:
    """The journal of this process. It is removed when closed, unless there is still something to put back.

    Only knobs that have `options`, with which they can be made again, are kept: others, as those of a simulator, end
    with their process. Several threads may use it.
    """

    def __init__(self, path: Path) -> None:
        """Use `Journal.open`."""
        self.path = path
        self.keeper: Keeper | None = None
        self._lock = threading.RLock()
        """Rounds note from one thread, who sees a new process from another; a keeper is noted from inside of a note."""
        self._book = Book(Process(os.getpid(), start_time(os.getpid())), world=world())
        self._numbers: dict[tuple[int, Target], int] = {}
        self._known: dict[int, tuple[Knob, int]] = {}
        """By the identity of a knob, which is kept alive here."""
        self._last = 0
        self._torn = False
        self._size = 0
        self._limit = ROOMY
        self._file = -1
        self._anew()

    @classmethod
    def open(cls, folder: Path | None = None) -> Journal:
        """A new journal in the folder for them."""
        folder = state_folder() if folder is None else folder
        make_private(folder)
        pid, number = os.getpid(), 0
        while (path := folder / f"{pid}-{number}{SUFFIX}").exists():
            number += 1
        return cls(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """How many targets are not put back yet."""
        return len(self._book.kept)

    @property
    def realtime(self) -> bool:
        """Whether threads may have real-time priorities."""
        return self._book.uses_realtime

    def tend(self) -> None:
        """Once a round: see to it that somebody keeps it."""
        if self.keeper is not None:
            self.keeper.check()

    def note(self, knob: Knob, found: Iterable[tuple[Target, Value]], wanted: Iterable[tuple[Target, Value]]) -> None:
        """Before a write: what those targets had that are written to for the first time, and what is to be written.

        If that fails nothing is noted, and nothing may be written.
        """
        with self._lock:
            recipe, lines = self._recipe(knob)
            if recipe is None:
                return
            new_knob, new = bool(lines), []
            for target, value in found:
                if (recipe, target) not in self._numbers:
                    self._last += 1
                    lines.append(["found", self._last, recipe, _plain(target), value])
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
        """After a write that went wrong: what there is now; None, where that can't be read."""
        with self._lock:
            recipe, _ = self._recipe(knob)
            if recipe is not None:
                self._write([self._values("are", recipe, seen)])

    def back(self, knob: Knob, targets: Iterable[Target]) -> None:
        """These were put back, or are nothing to us any more."""
        with self._lock:
            recipe, _ = self._recipe(knob)
            if recipe is not None:
                popped = [self._numbers.pop((recipe, target), None) for target in targets]
                numbers = [number for number in popped if number is not None]
                if numbers:
                    self._write([["back", numbers]])

    def kept_by(self, guardian: Process) -> None:
        """Who puts things back when this process can't."""
        with self._lock:
            self._write([["guardian", *guardian]])

    def leave(self) -> None:
        """All stays as it is, on purpose, until somebody asks for it to be put back."""
        with self._lock:
            self._write([["left"]])

    def close(self) -> None:
        """Done. What could not be put back stays written down, for the guardian and `treadle restore`."""
        if self._file < 0 or os.getpid() != self._book.owner.pid:  # a fork has it too, but it is not its own
            return
        os.close(self._file)
        self._file = -1
        if self._book.kept:
            return
        self.path.unlink(missing_ok=True)
        if self.keeper is not None:
            self.keeper.stop()

    def _recipe(self, knob: Knob) -> tuple[int | None, list[list[Any]]]:
        """The number of its recipe, with the line that says so if it is new."""
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
        text = _text(lines)
        if self._torn:  # whatever came of the last one, this begins on a line of its own
            text = b"\n" + text
        try:
            self._torn = os.write(self._file, text) != len(text)
        except OSError as error:
            self._torn = True
            raise EngineError(f"can't be written: {error}", where=f"journal {self.path}", remedy="make room") from error
        if self._torn:
            raise EngineError("was written in part only", where=f"journal {self.path}", remedy="make room on its disk")
        for line in lines:
            self._book.add(line)
        self._size += len(text)
        if self._size > self._limit:
            self._anew()

    def _anew(self) -> None:
        """Write down what is still to be put back, and nothing else, in the place of the old file."""
        text = _text(self._book.lines())
        new = self.path.with_suffix(".new")
        try:
            file = os.open(
                new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            if os.write(file, text) != len(text):
                os.close(file)
                raise OSError("no room for all of it")
            os.rename(new, self.path)
        except OSError as error:
            if self._file >= 0:  # the old one is good for longer
                self._limit = 2 * self._size
                return
            raise EngineError(f"can't be written: {error}", where=f"journal {self.path}", remedy="make room") from error
        if self._file >= 0:
            os.close(self._file)
        self._file, self._torn, self._size = file, False, len(text)
        self._limit = max(ROOMY, 4 * len(text))


def read(path: Path) -> Book:
    """What a journal says. A line that was not finished, since its writer was killed, is left out."""
    book = Book()
    for line in path.read_bytes().splitlines(keepends=True):
        with suppress(ValueError, TypeError, KeyError, IndexError):
            if line.endswith(b"\n"):
                book.add(json.loads(line))
    return book


def state_folder() -> Path:
    """Where the journals of this user are: only this user can write there."""
    return state_folders()[0]


def state_folders() -> list[Path]:
    """All folders where journals of this user may be, the one for new ones first."""
    folders: list[Path] = []
    if named := os.environ.get("TREADLE_STATE"):
        folders.append(Path(named))
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_ours(Path(runtime)):  # that of somebody else, after sudo, is not for us
        folders.append(Path(runtime) / "treadle")
    if os.geteuid() == 0:
        folders.append(Path("/run/treadle"))
    folders.append(Path("~/.local/state/treadle").expanduser())
    return folders


def make_private(folder: Path) -> None:
    """Make the folder, and be sure that nobody else can write there: what a journal says is done, as root if root."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        remedy = "set TREADLE_STATE to a folder of yours"
        raise RightsError(f"can't be made: {error}", where=f"folder {folder}", remedy=remedy) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        remedy = f"run 'chmod 700 {folder}', or set TREADLE_STATE to a folder of yours"
        raise RightsError("is not a folder that only you can write to", where=str(folder), remedy=remedy)


def start_time(pid: int) -> int:
    """When a process was started, in clock ticks since boot; 0 if there is none."""
    try:
        return thread_ref(pid, pid).start_time
    except TreadleError:
        return 0


def world() -> str:
    """The boot and the process namespace in which ids mean what they mean."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _text(lines: list[list[Any]]) -> bytes:
    return "".join([_ENCODE(line) + "\n" for line in lines]).encode()


def _plain(target: Target) -> str | list[Any]:
    if isinstance(target, str):
        return target
    return [target.tid, target.pid, target.start_time, target.role.value, target.name]


def _target(plain: str | list[Any]) -> Target:
    if isinstance(plain, str):
        return plain
    tid, pid, start, role, name = plain
    return ThreadRef(tid, pid, start, Role(role), name)


_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
