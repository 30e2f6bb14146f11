"""Locks that end with the process that holds them: `alone` for a short section, `Lock` for the one writer of a folder.

`Lock` is a record lock (`fcntl`) like Java's `FileChannel.lock`, so Python and a JVM both respect it. Such a lock
belongs to the process and is lost when any descriptor of its file is closed. So this process keeps a list of its locks
in memory, and does not open their files again.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from treadle.errors import EngineError


@contextmanager
def alone(path: Path, waits: Callable[[], None] | None = None) -> Iterator[None]:
    """Run the block in one process at a time. `waits` is called if another process holds the lock."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waits is not None:
                waits()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


class Lock:
    """The right to write to a folder, from the creation of the `Lock` until `release`. An error if it is taken."""

    def __init__(self, folder: Path) -> None:
        path = folder / _NAME
        with _guard:
            pid = holder(folder)
            if pid is not None:
                raise _taken(folder, pid)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pid = _asked(self._file)
                os.close(self._file)
                raise _taken(folder, pid) from None
            self._key = _key(path)
            self._pid = _held[self._key] = os.getpid()

    @property
    def held(self) -> bool:
        """Whether this process holds the lock. A forked process does not inherit it."""
        return self._file >= 0 and self._pid == os.getpid()

    def release(self) -> None:
        with _guard:
            if self._file >= 0:
                if self.held:
                    _held.pop(self._key, None)
                os.close(self._file)
                self._file = -1


def holder(folder: Path) -> int | None:
    """The process that holds the lock of this folder; 0 if it is in another pid namespace; None without a lock."""
    path = folder / _NAME
    try:
        if _held.get(_key(path)) == os.getpid():
            return os.getpid()
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        return _asked(file)
    finally:
        os.close(file)


def _asked(file: int) -> int | None:
    """The process that holds the lock according to the kernel."""
    question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, question))
    return None if kind == fcntl.F_UNLCK else max(0, pid)


def _key(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _taken(folder: Path, pid: int | None) -> EngineError:
    by = f"process {pid}" if pid else "another process"
    return EngineError(f"{by} already writes to this channel", where=str(folder), remedy="end it first")


_NAME = "writer.lock"
_FLOCK = "hhqqi0q"  # struct flock of 64-bit Linux
_guard = threading.Lock()
_held: dict[tuple[int, int], int] = {}
