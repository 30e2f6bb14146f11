"""Open files: the process limit, and files of threads in /proc that are kept open because that is faster.

Opening a file of /proc costs several times what reading it costs, so files that are read in every round are kept open.
With thousands of threads these could use up the limit. So at most half of the limit is used for kept files, and all of
them are closed when another file can't be opened.
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
"""The highest limit on open files that is set.

A higher one slows down programs that close every possible descriptor before they start a process."""
LEAST = 32
"""Number of files that may always be kept open, however low the limit is."""

Thread = tuple[int, ...]
"""(process id, thread id, ...): further numbers only make the key unique, such as a start time."""


def raise_limit() -> None:
    """Raise the limit on open files, also for child processes, to the hard limit, at most `MOST`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """As `os.open`; if too many files are open, close the kept files and try again."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not close_kept_files():
            raise
    return os.open(path, flags | os.O_CLOEXEC, mode)


def is_readable(file: int, seconds: float = 0.0) -> bool:
    """Wait at most `seconds` until a file can be read; return whether it can. Descriptors above 1023 are allowed."""
    waits = select.poll()
    waits.register(file, select.POLLIN)
    return bool(waits.poll(seconds * 1e3))


def close_kept_files() -> bool:
    """Close all kept files that are not being read, and keep fewer from now on; return whether any were closed."""
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
    """The file /proc/<pid>/task/<tid>/`name` of many threads, kept open as far as the limit allows.

    A kept file always refers to the thread that it was opened for. After the thread has ended, reading the file fails,
    also if another thread has the same id. Methods are thread-safe; hold `lock` to combine several calls.
    """

    def __init__(self, name: str, room: int, *, most: int = MOST) -> None:
        """`name` is the file's name, `room` the bytes to read (fewer is faster), `most` the limit on kept files."""
        self._name = name
        self._room = room
        self._most = most
        self._files: dict[Thread, int] = {}
        self._asked: Sequence[Thread] = ()
        self.lock = threading.RLock()  # no file is closed during a read; reentrant for signal handlers
        with _ALL_LOCK:
            _ALL.add(self)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, thread: Thread) -> bool:
        return thread in self._files

    def read(self, thread: Thread, accepts: Callable[[bytes], bool] | None = None) -> bytes:
        """Read the file of a thread; `FileNotFoundError` or `ProcessLookupError` if the thread has ended.

        A file is kept only if `accepts` returns true for its first contents.
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
        """The contents for each thread; `otherwise` for one that has ended. Files of all other threads are closed."""
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
        """Close the files of all threads except these."""
        with self.lock:
            for thread in self._files.keys() - set(threads):
                self.drop(thread)

    def drop(self, thread: Thread) -> None:
        """Close the file of a thread, if it is kept."""
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
    """How many files all objects of `KeptFiles` together may keep open."""

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
