"""A small process that puts everything back when the one it watches ends without having done so, as by kill -9.

It is started once and sleeps; everything it needs is imported by the time it is needed. It knows a journal and its
owner, and leaves the way back to `leftovers`.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from treadle.enforce import journal
from treadle.enforce.journal import NOBODY, Journal, Process
from treadle.enforce.kernel import Cgroups
from treadle.enforce.leftovers import put_back
from treadle.errors import EngineError, TreadleError
from treadle.model import ThreadRef

log = logging.getLogger("treadle.enforce")

TRIES = 5
PAUSE = 0.1
"""Seconds between tries to put back what could not be put back."""
FIRST, LONGEST = 0.5, 60.0
"""Seconds before a guardian that was killed is started again soon after another: twice as many each time."""
LOOK = 0.5
"""Seconds between two looks at whether it lives."""
ABOVE_ALL = 99
"""A higher real-time priority there is not."""


class Guardian:
    """The owner's end: starts the process, and starts another if that one is killed."""

    def __init__(self, journal: Journal) -> None:
        """Use `Guardian.start`."""
        self._journal = journal
        self._lifted = False
        self._pause = FIRST
        self._process = self._spawn()
        self._not_before = time.monotonic() + self._pause
        self._seen = -math.inf

    @classmethod
    def start(cls, journal: Journal) -> Guardian:
        """Let a process of its own keep this journal."""
        guardian = journal.keeper = cls(journal)
        guardian.check()
        return guardian

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Called once a round, so it is not always looked for."""
        if not self._lifted and self._journal.realtime:
            self._lifted = True
            lift(self.pid)
        now = time.monotonic()
        if now - self._seen < LOOK:
            return
        if self._process.poll() is None:
            self._seen = now
            return
        if now < self._not_before:
            return
        log.warning("the guardian has ended, another one is started", extra={"guardian": self.pid})
        self._lifted = False
        self._process = self._spawn()
        self._pause = min(2 * self._pause, LONGEST)
        self._not_before = now + self._pause

    def stop(self) -> None:
        """There is nothing left to guard."""
        self._process.kill()
        self._process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        home = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "treadle.enforce.guardian", str(self._journal.path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
        except OSError as error:
            remedy = "see that Python can start processes"
            raise EngineError(f"can't be started: {error}", where="guardian", remedy=remedy) from error
        with suppress(OSError):  # a full machine should not keep it from its imports
            os.setpriority(os.PRIO_PROCESS, process.pid, -20)
        self._journal.kept_by(Process(process.pid, journal.start_time(process.pid)))
        return process


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


def guard(path: Path) -> None:
    """Wait for the end of the journal's owner, and put back what it has not put back itself."""
    try:
        owner = journal.read(path).owner
    except FileNotFoundError:
        return
    if owner == NOBODY:
        return
    _wait_for(owner)
    if not path.exists():
        return
    if journal.read(path).uses_realtime:
        lift(os.getpid())
    for left in reversed(range(TRIES)):
        with suppress(TreadleError):
            if not any(outcomes.failures for outcomes in put_back(path)):
                return
        time.sleep(PAUSE if left else 0)


def _wait_for(owner: Process) -> None:
    try:
        handle = os.pidfd_open(owner.pid)
    except ProcessLookupError:
        return
    if journal.start_time(owner.pid) == owner.start_time:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        ended.poll()
    os.close(handle)


def main() -> None:
    """The process: `python -m treadle.enforce.guardian <journal>`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guard(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
