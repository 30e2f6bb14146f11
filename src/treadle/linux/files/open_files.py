"""Open files: the limit on them, and files of threads that are kept open only because that is quicker.

Opening a file of /proc costs several times what reading it costs, so files that are read in every round are kept open.
With thousands of threads these would be all that a process may have, so at most half of the limit is kept, and what
is kept is closed when anything else can't be opened.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from weakref import WeakSet

MOST = 1 << 20
"""Files: a higher limit only slows down programs that close all that could be open before they start others."""
LEAST = 32
"""Files that may be kept, however few can be open."""

Thread = tuple[int, ...]
"""(process id, thread id, ...): what comes after the two only tells one thread from another."""


def raise_limit() -> None:
    """Let this process, and those that it starts, have as many open files as it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """As `os.open`; if too many files are open, all that were only kept are closed first."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not close_kept_files():
            raise
    return os.open(path, flags | os.O_CLOEXEC, mode)


def is_readable(file: int, seconds: float = 0.0) -> bool:
    """Wait until it can be read, at most so long; also with a number above 1023, which `select.select` can't take."""
    waits = select.poll()
    waits.register(file, select.POLLIN)
    return bool(waits.poll(seconds * 1e3))


def close_kept_files() -> bool:
    """Close all kept files, and keep fewer from now on; whether there were any that nobody is just reading."""
    count = 0
    for kept in _all():
        if kept.lock.acquire(blocking=False):
            try:
                count += len(kept)
                kept.close()
            finally:
                kept.lock.release()
    if count:
        _Room.most = max(LEAST, count // 2)
    return count > 0


class KeptFiles:
    """One file of each of some threads in /proc, kept open where there is room.

    A kept file belongs to the thread that it was opened for: once that has ended it can't be read, also if another
    thread has its number by then. Several threads may use this; `lock` is for those that ask and then read.
    """

    def __init__(self, name: str, room: int, *, most: int = MOST) -> None:
        """`name` is that of the file, `room` the bytes to read: the fewer, the quicker; `most` the files to keep."""
        self._name = name
        self._room = room
        self._most = most
        self._files: dict[Thread, int] = {}
        self._asked: Sequence[Thread] = ()
        self.lock = threading.RLock()  # nobody may close what another reads; a signal may break in to put back
        with _ALL_LOCK:
            _ALL.add(self)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, thread: Thread) -> bool:
        return thread in self._files

    def read(self, thread: Thread, accepts: Callable[[bytes], bool] | None = None) -> bytes:
        """What the file says; `FileNotFoundError` or `ProcessLookupError` if the thread has ended.

        A file is kept only if `accepts` is true of what it says first.
        """
        with self.lock:
            file = self._files.get(thread)
            if file is None:
                return self._first(thread, accepts)
            try:
                return os.pread(file, self._room, 0)
            except OSError:
                self.drop(thread)
                raise

    def read_all(self, threads: Sequence[Thread], otherwise: bytes) -> list[bytes]:
        """The same of many, `otherwise` for a thread that has ended. The files of all others are closed."""
        texts: list[bytes] = []
        pread, files, room = os.pread, self._files, self._room
        with self.lock:
            if threads != self._asked:
                self.keep_only(threads)
                self._asked = threads
            for thread in threads:
                try:
                    texts.append(pread(files[thread], room, 0))
                except KeyError:
                    try:
                        texts.append(self._first(thread) or otherwise)
                    except (FileNotFoundError, ProcessLookupError):
                        texts.append(otherwise)
                except ProcessLookupError:
                    self.drop(thread)
                    texts.append(otherwise)
        return texts

    def keep_only(self, threads: Iterable[Thread]) -> None:
        """Close the files of all others."""
        with self.lock:
            for thread in self._files.keys() - set(threads):
                self.drop(thread)

    def drop(self, thread: Thread) -> None:
        """Close its file, if that is kept."""
        with self.lock:
            file = self._files.pop(thread, None)
            if file is not None:
                os.close(file)

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        with self.lock:
            for thread in tuple(self._files):
                self.drop(thread)

    def _first(self, thread: Thread, accepts: Callable[[bytes], bool] | None = None) -> bytes:
        file = open_file(f"/proc/{thread[0]}/task/{thread[1]}/{self._name}")
        keep = False
        try:
            text = os.pread(file, self._room, 0)
            keep = (accepts is None or accepts(text)) and _Room.left()
        finally:
            if not keep:
                os.close(file)
        if keep:
            if len(self._files) >= self._most:
                self.drop(next(iter(self._files)))
            self._files[thread] = file
        return text


class _Room:
    """How many files all may keep together."""

    most = MOST

    @classmethod
    def left(cls) -> bool:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = cls.most if soft == resource.RLIM_INFINITY else min(cls.most, max(soft // 2, LEAST))
        return sum(map(len, _all())) < limit


def _all() -> list[KeptFiles]:
    with _ALL_LOCK:
        return list(_ALL)


_ALL: WeakSet[KeptFiles] = WeakSet()
_ALL_LOCK = threading.RLock()
