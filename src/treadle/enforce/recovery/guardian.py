"""Starts the guardian, a small process that puts everything back when this one ends without having done so.

This is the owner's end: nothing may be written before the guardian has said that it is ready, and one that ends is
started again. What the process itself does is in `guardian_process`. The two talk over a pair of sockets, one packet a
message.
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
"""From the guardian: it has all that it needs, and waits for the owner's end."""
BEAT = b"beat"
"""To the guardian, at least every `LOOK` seconds once threads are real-time: the owner runs."""
MOVED = b"journal "
"""To the guardian, with a path: where the journal is now."""
OFF = b"off "
"""From the guardian, with the reason: it has taken real-time priorities off."""
ROOM = 1 << 13
"""Bytes: more than any message has."""
STARTS_WITHIN = 30.0
"""Seconds within which a guardian must be ready, also after the end of another: else nothing is scheduled."""
BACKOFF = Backoff(0.5, 8.0)
"""Before a guardian that was killed is started again."""
LOOK = 0.5
"""Seconds between two checks of whether it runs."""
ABOVE_ALL = 99
"""A higher real-time priority there is not."""
Released = Callable[[str], None]


class Guardian:
    """The keeper of a journal. `released` is called, in a round, after the guardian has taken real-time off."""

    def __init__(self, journal: Journal, released: Released | None = None) -> None:
        """Use `Guardian.start`."""
        self._journal = journal
        self._released = released
        self._lifted = False
        self._restarts = 0
        self._not_before = time.monotonic() + BACKOFF.pause(1)
        self._seen = -math.inf
        self._unguarded: float | None = None
        """Since when there is no guardian that is ready."""
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
        """Let a process of its own keep this journal. It is ready when this returns; an error if it can't be had."""
        guardian = journal.keeper = cls(journal, released)
        return guardian

    @property
    def pid(self) -> int:
        return self._child.pid

    def check(self) -> None:
        """See to it that there is one, that it knows where the journal is, and hear what it has done.

        An error if none could be started for `STARTS_WITHIN` seconds after the end of the last.
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
        """The heartbeat. Without it the guardian takes real-time off. Any thread may call it."""
        self._child.send(BEAT)

    def stop(self) -> None:
        """There is nothing left to guard."""
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
        """In the journal, so that whoever finds it knows that it is kept."""
        self._journal.kept_by(Process(self.pid, start_time(self.pid)))

    def _start_again(self, now: float) -> None:
        if self._unguarded is None:
            self._unguarded = now
        if now < self._not_before:
            return
        log.warning("the guardian has ended, another one is started", extra={"guardian": self.pid})
        self._child.end()
        self._lifted = False
        self._restarts += 1
        self._not_before = now + BACKOFF.pause(self._restarts + 1)
        try:
            self._child, self._problem = _Child(self._journal.path), None
        except EngineError as error:  # it is tried again, until it is too late
            self._problem = error


class _Child:
    """A guardian process, and the socket to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """Where it knows the journal to be."""
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
            theirs.close()  # so that its end is seen
            self._opened = opened.pop_all()
        with suppress(OSError):  # a full machine should not keep it from its imports
            os.setpriority(os.PRIO_PROCESS, self.pid, -20)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self, seconds: float) -> None:
        """An error, and no process, if it is not."""
        why = ""
        self._link.settimeout(seconds)
        try:
            if self._link.recv(ROOM) == READY:
                return
        except TimeoutError:
            why = f"it is not ready after {seconds:g} s"
        except OSError:  # it has ended, as after an empty packet
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
        """Whether it could be sent without waiting."""
        try:
            return self._link.send(message) == len(message)
        except OSError:
            return False

    def move(self, path: Path) -> None:
        """Let it know that the journal is elsewhere now."""
        if self.send(MOVED + os.fsencode(path)):
            self.path = path

    def end(self) -> str:
        """End it, if it has not ended; what it said last, for people."""
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
    """Where the guardian says what it has done while its owner can't: the owner's standard error."""
    try:
        return sys.__stderr__.fileno()  # type: ignore[union-attr] # it may be None, as in a daemon
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL


def lift(tid: int) -> bool:
    """Give a thread of ours a real-time priority above all others, where that is allowed; whether it was.

    Where the kernel wants a budget for that (RT_GROUP_SCHED), only that of the topmost group is sure not to be used up
    by the very threads that are to be stopped.
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
