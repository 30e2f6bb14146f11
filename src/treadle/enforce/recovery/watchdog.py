"""Takes real-time priorities off in a livelock, where threads burn CPU while they wait for threads that they starve.

On Spark, for example, stage threads poll at a real-time priority, while the ordinary helpers that they wait for never
run. Lachesis-RT has only a budget against that. With a budget the helpers get a little CPU, so the work does not stop
but hardly makes progress; that counts as a livelock, too. The watchdog's input in each round is the CPU time and the
progress of the real-time threads.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from treadle.durations import Backoff
from treadle.enforce.gate.slots import usable_cores
from treadle.enforce.recovery.guardian import lift
from treadle.errors import ConfigError

log = logging.getLogger("treadle.watchdog")

BURNT = 0.7
"""Share of their cores above which the CPU use of real-time threads is suspicious."""
PATIENCE = 1.0
"""Seconds without progress after which real-time priorities are taken off."""
BEAT = 0.2
"""Seconds between two checks by the watchdog's thread."""
LATE = 1.0
"""Seconds by which a check or a round may be late before the machine counts as not answering."""
WINDOW = 5.0
"""Seconds over which work for a CPU second is compared with the usual. It is long, since Kafka is read in batches."""
TRICKLE = 0.1
"""If the work for a CPU second is below this share of the usual work, that counts as no progress, too."""
USUAL = 30.0
"""Seconds over which the usual work for a CPU second is averaged."""
FORGIVEN = 10.0
"""If real-time stays on for this many times the last pause, the next pause is as short as the first."""


class Watchdog:
    """Calls `release` with a reason in a livelock; real-time then stays off for a pause, twice as long each time.

    `cores` is the number of cores that the real-time threads may use, with a budget only their share. All times are
    seconds; `period` is the longest time between two rounds. The first round after a pause calls `resume`.

    The watchdog's thread calls `beat` as a heartbeat. That thread needs the GIL, so another process must notice if
    heartbeats stop. `start` starts the thread; without it, all checks use only the times that are passed in.
    """

    def __init__(
        self,
        release: Callable[[str], None],
        *,
        resume: Callable[[], None] | None = None,
        cores: float | None = None,
        period: float = 0.0,
        patience: float = PATIENCE,
        pause: float = 10.0,
        longest_pause: float = 600.0,
        now: Callable[[], float] = time.monotonic,
        beat: Callable[[], None] | None = None,
    ) -> None:
        self.cores = float(usable_cores() if cores is None else cores)
        if not (self.cores > 0 and patience > 0 and 0 < pause <= longest_pause):
            message = f"cores={self.cores}, patience={patience}, pause={pause}, longest_pause={longest_pause}"
            raise ConfigError(message, where="watchdog", remedy="use numbers above 0, and no pause above the longest")
        self._release = release
        self._resume = resume
        self._beat = beat
        self._patience = patience
        self._quiet = LATE + period
        self._backoff = Backoff(pause, longest_pause)
        self._releases = 0
        self._pause = 0.0
        self._now = now
        self._until = -math.inf
        self._resumed = -math.inf
        self._armed = False
        self._letting_go = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._marks: deque[_Mark] = deque()
        self._cpu = self._progress = self._usual = math.nan
        self._sum = self._work = 0.0
        self._moved = self._fed = -math.inf

    @property
    def off(self) -> bool:
        """Whether real-time priorities were taken off, and the pause is not over."""
        return self._until > -math.inf

    def feed(
        self, at: float, cpu_seconds: float, progress: float, *, asked: float = math.inf, waiting: bool = True
    ) -> None:
        """Check a round at time `at`, and release if there is a livelock.

        `cpu_seconds` is the CPU that real-time threads have used so far, NaN without such threads. `progress` is a
        counter that grows with their work. If it can't be read it is NaN, which counts as no progress; before its first
        value, nothing is concluded from it. `asked` is when the counter was requested, if before `at`: an answer that
        was itself starved is no sign of progress. `waiting` says whether work is known to wait.
        """
        if self.off and at >= self._until:
            self._go_on(at)
        self._armed = not math.isnan(cpu_seconds)
        moved = not math.isnan(progress) and progress != self._progress
        if moved:
            self._work += max(progress - self._progress, 0.0) if not math.isnan(self._progress) else 0.0
            self._progress = progress
        if not waiting or not self._armed:
            self._moved = at
        elif moved:
            self._moved = max(self._moved, min(at, asked))
        self._burn(at, cpu_seconds)
        passed, self._fed = at - self._fed, at
        known = not math.isnan(self._progress)
        used, lately = self._since(at, self._patience), self._since(at, WINDOW)
        if self.off:
            self._learn(lately.gain)
        elif known and at - self._moved >= self._patience and used.cores > BURNT * self.cores:
            self._let_go(at, f"{used.cores:.1f} cores used without any progress for {at - self._moved:.1f} s")
        elif known and waiting and lately.cores > BURNT * self.cores and lately.gain < TRICKLE * self._usual:
            drop = f"{lately.gain:.3g} rows per CPU second, usually {self._usual:.3g}"
            self._let_go(at, f"{lately.cores:.1f} cores used with little progress: {drop}")
        else:
            self._learn(lately.gain, min(1.0, passed / USUAL))

    def look(self, at: float, late: float = 0.0) -> None:
        """Release if this check began too `late` (in seconds), or if no round was fed for long.

        The watchdog's thread calls this.
        """
        if not self._armed or self.off:
            return
        silent = at - self._fed
        if late > LATE:
            self._let_go(at, f"the machine does not respond: a check was {late:.1f} s late")
        elif silent > self._quiet:
            self._let_go(at, f"the machine does not respond: no control round for {silent:.1f} s")

    def let_go(self, reason: str) -> None:
        """Release at once, for a reason that other code has found, and pause as usual."""
        self._let_go(self._now(), reason)

    def start(self) -> None:
        """Start a thread for checks, at a real-time priority above all others where that is allowed."""
        if self._thread is None:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._run, name="treadle-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread for checks."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopped.set()
            thread.join()

    def _run(self) -> None:
        lift(threading.get_native_id())
        due = self._now() + BEAT
        while not self._stopped.wait(max(0.0, due - self._now())):
            at = self._now()
            self.look(at, at - due)
            if self._beat is not None:
                self._beat()
            due = self._now() + BEAT

    def _let_go(self, at: float, reason: str) -> None:
        """Release, unless another thread does so at this moment. After a failed release, waiting begins anew."""
        if not self._letting_go.acquire(blocking=False):
            return
        try:
            if self.off:
                return
            self._release(reason)
            calm = at - self._resumed > FORGIVEN * self._pause
            self._releases = 1 if calm else self._releases + 1
            self._pause = self._backoff.pause(self._releases)
            self._until = at + self._pause
        except Exception:
            log.exception("real-time priorities could not be taken off")
            self._moved = self._fed = at
            return
        finally:
            self._letting_go.release()
        log.warning(
            "real-time priorities are off for %.0f s: %s",
            *(self._pause, reason),
            extra={"reason": reason, "pause": self._pause},
        )

    def _go_on(self, at: float) -> None:
        self._resumed = self._moved = self._fed = at
        self._cpu = self._progress = math.nan
        self._marks.clear()
        self._until = -math.inf  # last: from here on the other thread's checks count
        if self._resume is not None:
            self._resume()
        log.info("real-time priorities are on again")

    def _burn(self, at: float, cpu_seconds: float) -> None:
        """Add the CPU seconds of a round, at most what the cores can give: a new thread adds all that it ever used."""
        if self._marks and not math.isnan(cpu_seconds - self._cpu):
            most = self.cores * (at - self._marks[-1].at)
            self._sum += min(max(cpu_seconds - self._cpu, 0.0), most)
        self._cpu = cpu_seconds
        self._marks.append(_Mark(at, self._sum, self._work))
        while len(self._marks) > 2 and self._marks[1].at <= at - max(self._patience, WINDOW):
            self._marks.popleft()

    def _since(self, at: float, seconds: float) -> _Stretch:
        """Return CPU use and gain over the last `seconds`. If less time is known, use that, with an unknown gain."""
        now = self._marks[-1]
        begin = next((mark for mark in reversed(self._marks) if mark.at <= at - seconds), self._marks[0])
        length, cpu = at - begin.at, now.cpu - begin.cpu
        whole = length >= seconds and cpu > 0
        return _Stretch(cpu / length if length > 0 else 0.0, (now.work - begin.work) / cpu if whole else math.nan)

    def _learn(self, gain: float, part: float = 1.0) -> None:
        """Average `gain` into the usual work for a CPU second, with the weight `part`.

        The weight is 1 while real-time is off, since real-time priorities can't slow the work down then.
        """
        if gain > 0:
            self._usual = gain if math.isnan(self._usual) else self._usual + (gain - self._usual) * part


class _Mark(NamedTuple):
    at: float
    cpu: float
    """CPU seconds used until `at`."""
    work: float


class _Stretch(NamedTuple):
    cores: float
    gain: float
    """Work for each CPU second; NaN while unknown."""
