"""Reads in the background what is too slow for a round: MBeans over HTTP, new and ended executors, Python workers.

A thread of its own reads; callers get the newest values. A failure affects only its own values, is logged once, and is
retried after pauses that double.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from treadle.durations import Backoff
from treadle.engines.spark.application import Application, Process
from treadle.engines.spark.kafka.consumers import REQUESTS, Consumer, Key, Matches, consumers, grown, sent
from treadle.engines.spark.kafka.flow import Flow
from treadle.engines.spark.threads.layout import python_worker
from treadle.engines.spark.threads.places import Place
from treadle.errors import TargetGone, TreadleError
from treadle.jvm import MBeans, NoAgentError
from treadle.linux import stat
from treadle.model import ThreadRef

log = logging.getLogger("treadle.engines.spark")

SCAN = 2.0
"""Seconds between two scans of the processes."""
LONGEST_PAUSE = 60.0


class SlowPoller:
    """A background thread that reads until `close`. `period` is the time in seconds between two reads of MBeans.

    Without `loads`, MBeans are read only where Jolokia is loaded already. Processes that `admits` refuses are left out.
    """

    def __init__(
        self,
        application: Application,
        period: float,
        *,
        loads: bool = True,
        admits: Callable[[Process], bool] = lambda _: True,
    ) -> None:
        self.processes: tuple[Process, ...] = application.processes
        self.ended = not application.processes
        """True if no process is left and none can start again."""
        self.workers: tuple[ThreadRef, ...] = ()
        self.found: Mapping[Key, Consumer] = {}
        """The newest figures of all consumers."""
        self.taken = math.nan
        """Records that all consumers have taken together, also consumers without a known task."""
        self.asked = -math.inf
        """The time at which the request for `taken` was sent; the answers come later."""
        self.flow = Flow()
        self.selectivity = math.nan
        """Set by the engine: rows out per row in, over all queries."""
        self.sources: Mapping[Place, ThreadRef] = {}
        """Set by the engine: the tasks that read from Kafka."""
        self.matches = Matches()
        self.wants_beans = False
        """Set by the engine: no Jolokia is loaded before this is True."""
        self.wants_workers = False
        """Set by the engine: whether any task needs Python."""
        self._application = application
        self._period = period
        self._loads = loads
        self._admits = admits
        self._beans: dict[int, MBeans] = {}
        self._counts: dict[Key, float] = {}
        self._backoff = Backoff(period, LONGEST_PAUSE)
        self._failed: dict[int, tuple[int, float]] = {}
        """By process, the number of consecutive failures, and when to try again."""
        self._told: set[str] = set()
        """Failures that were logged and have not ended yet: each is logged once."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="treadle-spark-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10.0)
        for beans in self._beans.values():
            beans.close()

    def _run(self) -> None:
        scan = 0.0
        while not self._stop.is_set():
            began = time.monotonic()
            if began >= scan or (self.wants_workers and not self.workers):
                self._tried("can't scan the processes", self._scan)
                scan = began + SCAN
            if self.wants_beans:
                self._tried("no live Kafka figures", self._read)
            # Pause for at least a twentieth of the period, however slowly the JVM answers.
            self._stop.wait(max(self._period - (time.monotonic() - began), 0.05 * self._period))

    def _tried(self, what: str, work: Callable[[], None]) -> None:
        """Run `work`; log a failure once and go on: without this thread, the application's end would not be noticed."""
        try:
            work()
        except Exception as error:
            if what not in self._told:
                log.warning("%s: %s", what, error, exc_info=not _foreseen(error), extra={"error": str(error)})
            self._told.add(what)
        else:
            self._told.discard(what)

    def _scan(self) -> None:
        processes = self._application.look_again()
        self.ended = not processes and not self._application.may_return()
        processes = tuple(process for process in processes if self._admits(process))
        if processes != self.processes:
            self.processes = processes
        pids = [process.pid for process in self.processes]
        self.workers = python_workers(pids) if self.wants_workers else ()
        for pid in self._beans.keys() - self._alive():
            self._beans.pop(pid).close()
        for pid in self._failed.keys() - self._alive():
            del self._failed[pid]

    def _read(self) -> None:
        now = time.monotonic()
        found: dict[Key, Consumer] = {}
        left: dict[Key, float] = {}
        for process in self.processes:
            failures, again = self._failed.get(process.pid, (0, 0.0))
            if now < again:
                continue
            try:
                if process.pid not in self._beans:
                    self._beans[process.pid] = MBeans(process.pid, load=self._loads)
                answer = self._beans[process.pid].read(REQUESTS)
                found.update(consumers(process.pid, answer))
                left.update(sent(process.pid, answer))
                self._failed.pop(process.pid, None)
            except TargetGone:
                self._drop(process.pid)
            except NoAgentError:
                self._failed[process.pid] = (failures + 1, now + self._backoff.pause(failures + 1))
            except Exception as error:  # also an unexpected one: the other processes still have figures
                self._drop(process.pid)
                if process.pid not in self._failed:
                    log.warning(
                        "no live Kafka figures of process %d: %s",
                        process.pid,
                        error,
                        exc_info=not _foreseen(error),
                        extra={"error": str(error)},
                    )
                self._failed[process.pid] = (failures + 1, now + self._backoff.pause(failures + 1))
        self.asked = now  # first: new counts must never be seen with an older time
        self._count(found)
        if self._beans.keys() >= self._alive() and not self._failed:
            self.flow.update(time.monotonic(), found, left, self.selectivity)
        else:  # consumers that did not answer would seem to have ended
            self.flow.rate = self.flow.waiting = math.nan
        self.matches.match(found, self.sources)
        self.found = found

    def _count(self, found: Mapping[Key, Consumer]) -> None:
        counts = {key: consumer.consumed for key, consumer in found.items() if not math.isnan(consumer.consumed)}
        if counts:
            self.taken = grown(counts, self._counts) + (0.0 if math.isnan(self.taken) else self.taken)
        self._counts = {key: count for key, count in (self._counts | counts).items() if key[0] in self._alive()}

    def _alive(self) -> set[int]:
        return {process.pid for process in self.processes}

    def _drop(self, pid: int) -> None:
        beans = self._beans.pop(pid, None)
        if beans is not None:
            beans.close()


def _foreseen(error: Exception) -> bool:
    return isinstance(error, TreadleError | OSError)


def python_workers(pids: Sequence[int]) -> tuple[ThreadRef, ...]:
    """The Python workers of these JVMs: processes that PySpark's daemon, a child of the JVM, has forked."""
    parents: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError, ValueError):
                found = stat.read(int(name), last=stat.STARTED)
                parents[int(name)] = (int(found[stat.PARENT]), int(found[stat.STARTED]))
    daemons = {pid for pid, (parent, _) in parents.items() if parent in pids and _is_daemon(pid)}
    return tuple(python_worker(pid, began) for pid, (parent, began) in sorted(parents.items()) if parent in daemons)


def _is_daemon(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            return b"pyspark.daemon" in file.read(4096)
    except OSError:
        return False
