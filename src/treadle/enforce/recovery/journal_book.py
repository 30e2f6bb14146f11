"""The content of a journal: knobs by name and options, and the values that each target had and was given.

A journal is lines of JSON. Each line is an event; together they make a `Book`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from treadle.enforce.kernel.guard import thread_ref
from treadle.enforce.knob import Target, Value
from treadle.errors import TreadleError
from treadle.linux.files.open_files import is_readable, open_file
from treadle.model import Role, ThreadRef

FORMAT = 1
SUFFIX = ".journal"
LARGEST = 1 << 28
"""The largest journal in bytes; one of 100,000 threads has about a tenth of that."""
REALTIME = "rt"
"""The name of the knob for real-time threads, which can keep all other threads from running."""


class Process(NamedTuple):
    """A process; its start time distinguishes it from a later process with the same id."""

    pid: int
    start_time: int

    @property
    def alive(self) -> bool:
        """Whether the process runs; a zombie does not."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            return start_time(self.pid) == self.start_time and not is_readable(handle)
        finally:
            os.close(handle)


NOBODY = Process(0, 0)


class Recipe(NamedTuple):
    """The name and options from which another process can make a knob again."""

    name: str
    options: Mapping[str, Any]


@dataclass(slots=True)
class Kept:
    """A target in the journal. `found` is its value before our first write.

    `ours` has the values that our writes may have left on the target, the newest last. There may be two, since a value
    is recorded before it is written; after a failed write, None stands for any value. Without a write `ours` is empty.
    """

    recipe: int
    target: Target
    found: Value
    ours: tuple[Value | None, ...] = ()


@dataclass
class Book:
    """All the content of a journal. The functions `world` and `host` explain the fields with their names."""

    owner: Process = NOBODY
    guardian: Process = NOBODY
    world: str = ""
    host: str = ""
    recipes: dict[int, Recipe] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    left: bool = False
    """Whether the owner has left all changes in place on purpose."""

    @property
    def uses_realtime(self) -> bool:
        return any(recipe.name == REALTIME for recipe in self.recipes.values())

    def lines(self) -> list[list[Any]]:
        """Return this content in as few lines as possible."""
        lines: list[list[Any]] = [["owner", FORMAT, *self.owner, self.world, self.host], ["guardian", *self.guardian]]
        lines += [["knob", number, name, options] for number, (name, options) in self.recipes.items()]
        for number, kept in self.kept.items():
            lines.append(["found", number, kept.recipe, plain(kept.target), kept.found])
            lines += [["set", [number], [value]] for value in kept.ours]
        return [*lines, ["left"]] if self.left else lines

    def add(self, line: list[Any]) -> None:
        """Apply one line of a journal, which is one event."""
        kind, *rest = line
        if kind == "owner":
            self.owner, self.world = Process(*rest[1:3]), rest[3]
            self.host = rest[4] if len(rest) > 4 else ""
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


def read(path: Path) -> Book:
    """Read a journal of this user."""
    file = open_journal(path)
    try:
        return read_file(file)
    finally:
        os.close(file)


def open_journal(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a journal; a PermissionError if another user could have written it."""
    file = open_file(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return file
    os.close(file)
    raise PermissionError(errno.EPERM, "is not an ordinary file of this user's, or others can write to it", str(path))


def read_file(file: int) -> Book:
    """Read an open journal. A line that is incomplete, since its writer was killed, is left out."""
    with open(file, "rb", closefd=False) as stream:
        text = stream.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise OSError(errno.EFBIG, f"has more than {LARGEST} bytes")
    book = Book()
    for line in text.splitlines(keepends=True):
        with suppress(ValueError, TypeError, KeyError, IndexError):
            if line.endswith(b"\n"):
                book.add(json.loads(line))
    return book


def start_time(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; 0 if no process has this id."""
    try:
        return thread_ref(pid, pid).start_time
    except TreadleError:
        return 0


def world() -> str:
    """Return the boot id and PID namespace in which the ids of processes are valid; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def host() -> str:
    """Return the name of this machine. With it, journals of other machines in a shared home folder are recognised."""
    return os.uname().nodename


def as_text(lines: list[list[Any]]) -> bytes:
    """Return lines as the bytes that a journal has for them."""
    return "".join([_ENCODE(line) + "\n" for line in lines]).encode()


def plain(target: Target) -> str | list[Any]:
    """Return a target as JSON values."""
    if isinstance(target, str):
        return target
    return [target.tid, target.pid, target.start_time, target.role.value, target.name]


def _target(plain: str | list[Any]) -> Target:
    if isinstance(plain, str):
        return plain
    tid, pid, start, role, name = plain
    return ThreadRef(tid, pid, start, Role(role), name)


_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
