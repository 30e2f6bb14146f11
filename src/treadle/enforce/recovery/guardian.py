"""Starts the guardian, a small process that puts everything back if this process ends without having done so.

This is the side of the owner, the process whose changes are in the journal. It changes nothing before the guardian has
reported that it is ready, and it starts a guardian that ends again. The other side is `guardian_process`. Each message
is one packet on a socket pair.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from treadle.durations import Backoff
from treadle.enforce.kernel import Cgroups
from treadle.enforce.recovery.journal import Journal
from treadle.enforce.recovery.journal_book import Process, start_time
from treadle.errors import EngineError, TreadleError
from treadle.model import ThreadRef
from treadle.text import visible

log = logging.getLogger("treadle.enforce")

READY = b"ready"
"""Message from the guardian: it has loaded all code that it needs, and waits for the end of the owner."""
BEAT = b"beat"
"""Message to the guardian: the owner runs. It is sent every `LOOK` seconds or more often if threads are real-time."""
MOVED = b"journal "
"""Message to the guardian, followed by the new path of the journal."""
OFF = b"off "
"""Message from the guardian, followed by the reason: it has taken real-time priorities off."""
ROOM = 1 << 13
"""Size of the receive buffer in bytes: larger than any message."""
STARTS_WITHIN = 30.0
"""Seconds within which a guardian must be ready, at first and after one has ended; else nothing is scheduled."""
BACKOFF = Backoff(0.5, 8.0)
"""Pauses in seconds before a guardian that has ended is started again."""
LOOK = 0.5
"""Seconds between two checks of whether the guardian runs."""
ABOVE_ALL = 99
"""The highest real-time priority of Linux."""
Released = Callable[[str], None]


class Guardian:
    """The guardian of a journal. `check` calls `released` if the guardian has taken real-time priorities off."""

    def __init__(self, journal: Journal, released: Released | None = None) -> None:
        """Use `Guardian.start`."""
        self._journal = journal
        self._released = released
        self._lifted = False
        self._restarts = 0
        self._not_before = time.monotonic() + BACKOFF.pause(1)
        self._seen = -math.inf
        self._unguarded: float | None = None
        """The time since which no guardian is ready; None if one is."""
        self._problem: EngineError | None = None
        self._given_up: EngineError | None = None
        self._child = _Child(journal.path)
        try:
            self._child.wait_until_ready(STARTS_WITHIN)
            self._note()
        except BaseException:
            self._child.end()
            raise

    @classmethod
    def start(cls, journal: Journal, released: Released | None = None) -> Guardian:
        """Start a guardian for this journal, and wait until it is ready. An error if it can't be started."""
        guardian = journal.keeper = cls(journal, released)
        return guardian

    @property
    def pid(self) -> int:
        return self._child.pid

    def check(self) -> None:
        """Restart the guardian if it has ended, send it the path of a journal that was moved, and read its messages.

        An error if no guardian is ready within `STARTS_WITHIN` seconds after the last one has ended.
        """
        if self._given_up is not None:
            raise self._given_up
        if self._child.path != self._journal.path:
            self._child.move(self._journal.path)
        if not self._lifted and self._journal.realtime:
            self._lifted = True
            lift(self.pid)
            self.beat()
        now = time.monotonic()
        if now - self._seen < LOOK:
            return
        self._seen = now
        if self._lifted:
            self.beat()
        for message in self._child.messages():
            self._hear(message)
        if not self._child.runs:
            self._start_again(now)
        if self._unguarded is not None and now - self._unguarded > STARTS_WITHIN:
            said = self._child.end()
            self._given_up = self._problem or _not_started(said)
            raise self._given_up

    def beat(self) -> None:
        """Send the heartbeat, without which the guardian takes real-time off. Any thread may call this."""
        self._child.send(BEAT)

    def stop(self) -> None:
        """End the guardian: nothing is left to guard."""
        self._child.end()

    def _hear(self, message: bytes) -> None:
        if message == READY:
            self._unguarded = None
            self._note()
        elif message.startswith(OFF):
            reason = visible(message.removeprefix(OFF).decode(errors="replace"))
            log.warning("the guardian has taken real-time priorities off: %s", reason, extra={"reason": reason})
            if self._released is not None:
                self._released(reason)

    def _note(self) -> None:
        """Record the guardian in the journal, so that other processes leave the journal to it while it lives."""
        self._journal.kept_by(Process(self.pid, start_time(self.pid)))

    def _start_again(self, now: float) -> None:
        if self._unguarded is None:
            self._unguarded = now
        if now < self._not_before:
            return
        log.warning("the guardian process has ended; starting another one", extra={"guardian": self.pid})
        self._child.end()
        self._lifted = False
        self._restarts += 1
        self._not_before = now + BACKOFF.pause(self._restarts + 1)
        try:
            self._child, self._problem = _Child(self._journal.path), None
        except EngineError as error:  # tried again until `STARTS_WITHIN` has passed
            self._problem = error


class _Child:
    """A guardian process, and the socket to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The last path of the journal that was sent to the guardian."""
        self._said = ""
        home = str(Path(__file__).parents[3])
        search = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
        with ExitStack() as opened:
            try:
                self._errors = opened.enter_context(tempfile.TemporaryFile())
                self._link, theirs = map(opened.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                self._link.setblocking(False)
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "treadle.enforce.recovery.guardian_process", str(path)],
                    stdin=theirs.fileno(),
                    stdout=_shown(),
                    stderr=self._errors,
                    cwd="/",
                    env={**os.environ, "PYTHONPATH": search, "OPENBLAS_NUM_THREADS": "1"},
                    start_new_session=True,
                )
            except OSError as error:
                raise _not_started(str(error)) from error
            theirs.close()  # else this end of the socket would not see that the guardian has ended
            self._opened = opened.pop_all()
        with suppress(OSError):  # so that its imports are quick also on a busy machine
            os.setpriority(os.PRIO_PROCESS, self.pid, -20)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until the guardian is ready; otherwise end it and raise an error."""
        why = ""
        self._link.settimeout(seconds)
        try:
            if self._link.recv(ROOM) == READY:
                return
        except TimeoutError:
            why = f"it is not ready after {seconds:g} s"
        except OSError:  # the guardian has ended, which an empty packet means too
            pass
        finally:
            self._link.setblocking(False)
        said = self.end()
        raise _not_started(why or said)

    def messages(self) -> list[bytes]:
        """Receive the messages that have arrived; empty if there are none or the guardian has ended."""
        found: list[bytes] = []
        with suppress(OSError):
            while message := self._link.recv(ROOM):
                found.append(message)
        return found

    def send(self, message: bytes) -> bool:
        """Send a message without waiting; return whether that was possible."""
        try:
            return self._link.send(message) == len(message)
        except OSError:
            return False

    def move(self, path: Path) -> None:
        """Send the guardian the new path of the journal."""
        if self.send(MOVED + os.fsencode(path)):
            self.path = path

    def end(self) -> str:
        """End the guardian if it runs; return the last line of its stderr, or its exit code."""
        self._process.kill()
        code = self._process.wait()
        with self._opened, suppress(OSError, ValueError):
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").split("\n")
            self._said = visible(next((line for line in reversed(lines) if line.strip()), ""))
        return self._said or f"it ended with exit code {code}"


def _not_started(why: str) -> EngineError:
    remedy = f"see that {sys.executable} can start and import treadle; without a guardian nothing is scheduled"
    return EngineError(f"can't be started: {why}", where="guardian", remedy=remedy)


def _shown() -> int:
    """Return the descriptor to which the guardian writes what the owner can't log: the owner's standard error."""
    try:
        return sys.__stderr__.fileno()  # type: ignore[union-attr] # it may be None, as in a daemon
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL


def lift(tid: int) -> bool:
    """Give a thread of this process or its guardian the highest real-time priority; return whether that was allowed.

    With RT_GROUP_SCHED, a real-time thread needs a group with a budget. If its own group has none, the thread is moved
    to the root group: threads in a livelock can't use up the budget of that group.
    """
    for at_top in (False, True):
        try:
            if at_top:
                groups = Cgroups()
                if groups.version != 1:
                    return False
                groups.move(ThreadRef(tid, tid), groups.mount.root)
            os.sched_setscheduler(tid, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(ABOVE_ALL))
        except (OSError, TreadleError):
            continue
        return True
    return False
