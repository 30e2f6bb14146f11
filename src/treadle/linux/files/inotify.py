"""Changes in folders, reported by the kernel (inotify), so that callers need not list the folders again and again.

A process has one inotify instance, since the kernel allows few per user. If none can be made, `watch` returns None, and
callers have to list their folders.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

MOVED_IN, DELETED, MOVED_OUT, CREATED = 0x80, 0x200, 0x40, 0x100
_IGNORED, _OVERFLOW, _GONE = 0x8000, 0x4000, 0x400 | 0x800
_EVENT = struct.Struct("iIII")
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class Watch:
    """One watched folder. `take` returns the changes since the last call."""

    def __init__(self, number: int, instance: _Instance) -> None:
        self.number = number
        self._instance = instance
        self._events: list[tuple[int, str]] = []
        self._lost = False
        self.ended = False
        """Whether the folder is gone, so that no more changes follow."""

    def take(self) -> list[tuple[int, str]] | None:
        """Kind and file name of each change since the last call, in order; None if some changes were lost."""
        self._instance.drain()
        if not self._events and not self._lost:
            return []
        with self._instance.lock:
            events, self._events = self._events, []
            lost, self._lost = self._lost, False
        return None if lost else events

    def close(self) -> None:
        self._instance.remove(self)

    def note(self, kind: int, name: str) -> None:
        if kind & (_IGNORED | _GONE):
            self.ended = self._lost = True
        elif kind & _OVERFLOW:
            self._lost = True
        else:
            self._events.append((kind, name))


def watch(folder: str) -> Watch | None:
    """Watch a folder for files that are renamed, made or deleted; None if the system can't."""
    with _making:
        global _instance
        if _instance is None or _instance.pid != os.getpid():  # a forked process would take events from its parent
            _instance = _Instance()
        return _instance.add(folder)


class _Instance:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file: int = self._libc.inotify_init1(_FLAGS)
        self._watches: dict[int, list[Watch]] = {}

    def add(self, folder: str) -> Watch | None:
        if self._file < 0:
            return None
        wanted = MOVED_IN | DELETED | MOVED_OUT | CREATED | _GONE
        with self.lock:
            number: int = self._libc.inotify_add_watch(self._file, os.fsencode(folder), wanted)
            if number < 0:
                return None
            found = Watch(number, self)
            self._watches.setdefault(number, []).append(found)  # two views of one folder share the kernel's watch
            return found

    def remove(self, gone: Watch) -> None:
        with self.lock:
            others = self._watches.get(gone.number, [])
            if gone in others:
                others.remove(gone)
                if not others:
                    del self._watches[gone.number]
                    self._libc.inotify_rm_watch(self._file, gone.number)

    def drain(self) -> None:
        """Read all pending events and pass them to their watches."""
        with self.lock, suppress(BlockingIOError):
            while data := os.read(self._file, 65536):
                for number, kind, name in _events(data):
                    meant = self._watches.get(number, []) if number >= 0 else self._all()
                    for each in meant:
                        each.note(kind, name)
                    if kind & _IGNORED:
                        self._watches.pop(number, None)

    def _all(self) -> list[Watch]:
        return [each for watches in self._watches.values() for each in watches]


def _events(data: bytes) -> Iterator[tuple[int, int, str]]:
    at = 0
    while at < len(data):
        number, kind, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield number, kind, os.fsdecode(data[at : at + length].rstrip(b"\0"))
        at += length


_making = threading.Lock()
_instance: _Instance | None = None
