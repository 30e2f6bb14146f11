"""The guardian: waits for the end of a journal's owner, and puts back what the owner has not put back itself.

It imports all that it needs, reports that it is ready, and sleeps. While threads are real-time it also expects
heartbeats: an owner that is stopped, or that does not get the GIL, can't take real-time off, so the guardian does. The
module `leftovers` puts values back.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from treadle.enforce.recovery.guardian import BEAT, MOVED, OFF, READY, ROOM, lift
from treadle.enforce.recovery.journal_book import NOBODY, Book, read, start_time
from treadle.enforce.recovery.leftovers import journals, put_back, take_off_realtime
from treadle.errors import TreadleError
from treadle.linux import stat

TRIES = 5
PAUSE = 0.1
"""Seconds between two of the `TRIES` to put values back."""
LOOK = 0.5
"""Seconds between two checks of the owner while threads are real-time."""
SILENT = 3.0
"""Seconds without a heartbeat after which real-time is taken off."""
STOPPED = 1.0
"""Seconds without a heartbeat after which real-time is taken off if the kernel reports the owner as stopped.

It is above 0, since a debugger often stops a process only for a moment."""


class Post:
    """Watches the owner for the guardian. `link` is the guardian's end of the socket."""

    def __init__(self, path: Path, link: socket.socket, now: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.owner = read(path).owner
        self._link = link
        self._now = now
        self._heard = math.inf
        """The time of the last heartbeat; infinity before the first one, when no thread is real-time."""

    def wait(self) -> None:
        """Report that the guardian is ready, and wait until the owner has ended. Heartbeats are checked meanwhile."""
        try:
            handle = os.pidfd_open(self.owner.pid)
        except ProcessLookupError:
            return
        if start_time(self.owner.pid) == self.owner.start_time:
            self._link.send(READY)
            events = select.poll()
            events.register(handle, select.POLLIN)
            events.register(self._link, select.POLLIN)
            while True:
                ready = dict(events.poll(None if math.isinf(self._heard) else LOOK * 1e3))
                if self._link.fileno() in ready and not self.hear():
                    events.unregister(self._link)
                if handle in ready:
                    break
                self.look_at_owner()
        os.close(handle)

    def hear(self) -> bool:
        """Read all messages that the owner has sent; False if no more can arrive."""
        try:
            while message := self._link.recv(ROOM, socket.MSG_DONTWAIT):
                if message == BEAT:
                    self._heard = self._now()
                elif message.startswith(MOVED):
                    self.path = Path(os.fsdecode(message.removeprefix(MOVED)))
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def look_at_owner(self) -> None:
        """Take real-time priorities off if the owner is stopped or sends no heartbeat.

        This is repeated while that lasts, since the owner may run for a moment and finish the write of a priority.
        """
        silent = self._now() - self._heard
        stopped = silent > STOPPED and _is_stopped(self.owner.pid)
        if not stopped and silent <= SILENT:
            return
        done = 0
        with suppress(OSError, TreadleError):
            done = sum(len(outcomes.applied) for outcomes in take_off_realtime(self.path))
        if done:
            pid = self.owner.pid
            reason = f"process {pid} was stopped" if stopped else f"no heartbeat of process {pid} for {silent:.0f} s"
            with suppress(OSError):
                self._link.send(OFF + reason.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            _say(f"treadle: the guardian took real-time priorities off {done} threads: {reason}\n")


def guard(path: Path, link: socket.socket) -> None:
    """Wait for the end of the journal's owner, and put back what it has not put back itself."""
    try:
        post = Post(path, link)
    except FileNotFoundError:
        return
    if post.owner == NOBODY:
        return
    post.wait()
    found = _find(post)
    if found is None:  # all was put back, and the journal removed
        return
    path, book = found
    if book.left:
        return
    if book.uses_realtime:
        lift(os.getpid())
    for left in reversed(range(TRIES)):
        with suppress(TreadleError):
            if not any(outcomes.failures for outcomes in put_back(path)):
                return
        time.sleep(PAUSE if left else 0)


def _find(post: Post) -> tuple[Path, Book] | None:
    """Return the owner's journal: where the owner reported it or, if it was killed before it could, elsewhere."""
    for path in (post.path, *journals()):
        with suppress(OSError):
            book = read(path)
            if book.owner == post.owner:
                return path, book
    return None


def _is_stopped(pid: int) -> bool:
    """Return whether a signal (as Ctrl-Z sends it) or a debugger has stopped the process."""
    try:
        return stat.read(pid, last=stat.STATE)[stat.STATE] in (b"T", b"t")
    except (OSError, ValueError):
        return False


def _say(text: str) -> None:
    """Write to the owner's standard error unless that would block: its reader may be stopped too."""
    with suppress(OSError):
        room = select.poll()
        room.register(1, select.POLLOUT)
        if room.poll(0):
            os.write(1, text.encode())


def main() -> None:
    """Run `python -m treadle.enforce.recovery.guardian_process <journal>`, with a socket as standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard(Path(sys.argv[1]), socket.socket(fileno=0))


if __name__ == "__main__":
    main()
