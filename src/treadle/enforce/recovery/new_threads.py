"""Resets threads and processes that scheduled threads have started, since they inherit the values that we have set.

A new thread inherits nice, slice and group from the thread that starts it. It is reset to the values that its process
had before, so that these count as its found values if it is scheduled later. The journal has the values of each
process, so that a restore after a kill also resets threads that the killed process never saw. If a parent exits before
our scan, its child can't be attributed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache

from treadle.enforce.changes import same
from treadle.enforce.kernel import thread_ref
from treadle.enforce.knob import Knob, Value
from treadle.enforce.recovery.journal import Journal
from treadle.enforce.recovery.journal_book import Kept, start_time
from treadle.errors import TreadleError
from treadle.model import ThreadRef, Topology

INHERITED = ("nice", "slice", "group")
"""Names of the knobs with values that a new thread inherits.

A real-time thread starts ordinary threads, but in its own group: `send_home` moves them out of that group."""
MANY = 20
"""Number of new thread ids up to which it is faster to check each id than to list all threads."""
PASSES = 5
"""The largest number of scans in a row. Scans are repeated, since a new thread may start another during a scan."""
FORGET = 1.0
"""Seconds between two full scans while threads are started.

A full scan forgets the ids of ended threads, long before the kernel uses them again."""


class NewThreadReset:
    """Resets the new threads of some processes to the values of each process's first thread.

    The first thread still has the values with which its process was started. It is recorded in the journal as the
    witness of these values, unless it is scheduled itself. A child process that is started later is reset to the values
    of its parent process.
    """

    def __init__(self, knobs: Iterable[Knob], pids: Iterable[int], journal: Journal | None = None) -> None:
        knobs = tuple(knobs)
        self._knobs = tuple(knob for knob in knobs if knob.name in INHERITED)
        self._ways_home = [way for knob in knobs if (way := getattr(knob, "send_home", None)) is not None]
        """The `send_home` methods of knobs that move threads to other groups, in which new threads are then started."""
        self._journal = journal
        self._known: dict[int, set[str]] = {}
        self._found: dict[int, Mapping[str, Value]] = {}
        self._witnesses: list[tuple[Knob, ThreadRef]] = []
        self._seen: Topology | None = None
        self._births = Births()
        self._unborn: list[int] = []
        """Ids that the kernel has given out for threads not yet in /proc: they are checked once more."""
        self._processes = _processes()
        """The ids of all processes at the last full scan. The next one reads only new processes, to be fast."""
        for pid in pids:
            self._meet(pid, journal)

    def settle(self, topology: Topology, *, all_threads: bool = False) -> None:
        """Reset new threads, also of new processes, to the values that their process had.

        With `all_threads`, all threads are listed until no new one is found, at most `PASSES` times.
        """
        born, late = self._births.since_last_time(), self._unborn
        self._unborn = []
        if all_threads:
            for _ in range(PASSES):  # a new thread may have started another before it was reset
                if not self._look_at_all():
                    break
        elif born is None:
            self._look_at_all()
        elif born or late:
            self._unborn = [tid for tid in born if not self._look_at(tid)]
            for tid in late:
                self._look_at(tid)
        if topology is not self._seen:
            self._seen = topology
            scheduled = {thread.pid for thread in topology.threads if thread.tid == thread.pid}
            for pid in {thread.pid for thread in topology.threads} - self._known.keys():
                self._meet(pid, journal=None if pid in scheduled else self._journal)

    @property
    def expects(self) -> bool:
        """Whether there are ids to check again in the next round."""
        return bool(self._unborn)

    def close(self) -> None:
        """Remove the witnesses from the journal: all is put back."""
        for knob, witness in self._witnesses:
            if self._journal is not None:
                self._journal.back(knob, [witness])
        self._witnesses = []

    def _meet(self, pid: int, journal: Journal | None) -> None:
        """Remember a process and its values; with `journal`, record its first thread there as a witness."""
        mine: dict[str, Value] = {}
        for knob in self._knobs:
            with suppress(TreadleError):
                first = thread_ref(pid, pid)
                mine[knob.name] = knob.read(first)
                if journal is not None:
                    journal.note(knob, [(first, mine[knob.name])], [])
                    self._witnesses.append((knob, first))
        self._known[pid], self._found[pid] = _threads(pid), mine

    def _look_at_all(self) -> bool:
        """List all threads and reset the new ones; return whether there were any."""
        before, self._processes = self._processes, _processes()
        self._adopt({pid: _origin(pid)[1] for pid in map(int, self._processes - before)})
        new = 0
        for pid, known in list(self._known.items()):
            threads = self._known[pid] = _threads(pid)
            self._give_all(pid, threads - known)
            new += len(threads - known)
            if not threads:
                del self._known[pid], self._found[pid]
        return new > 0

    def _look_at(self, tid: int) -> bool:
        """Reset the new thread with this id if it is in one of our processes; return whether /proc has the thread."""
        pid, parent = _origin(tid)
        if pid == tid:
            self._adopt({pid: parent})
        elif pid in self._known and str(tid) not in self._known[pid]:
            self._known[pid].add(str(tid))
            self._give_all(pid, {str(tid)})
        return pid != 0

    def _adopt(self, parents: Mapping[int, int]) -> None:
        """Add and reset the new processes that descend from ours. `parents` has the parent of each new process."""
        for pid in descendants(self._known, parents):
            if pid not in self._known:
                self._known[pid], self._found[pid] = _threads(pid), self._found[parents[pid]]
                self._give_all(pid, self._known[pid])

    def _give_all(self, pid: int, threads: Iterable[str]) -> None:
        found = self._found[pid]
        for tid in threads:
            for knob in self._knobs:
                if knob.name in found:
                    give(knob, pid, int(tid), found[knob.name])
            for send_home in self._ways_home:
                with suppress(TreadleError):
                    send_home(thread_ref(int(tid), pid))


class Births:
    """Finds the ids of new threads of all processes without listing threads, which is expensive for large processes.

    The kernel assigns ids in ascending order, and /proc/loadavg has the last one.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = 0
        self._forget_at = -math.inf

    def since_last_time(self) -> range | None:
        """Return the ids assigned since the last call; None if a full scan is needed.

        That is so if there are too many new ids, if ids have wrapped around, or after `FORGET` seconds.
        """
        before, self._last = self._last, self._read()
        if self._last and self._last == before:
            return range(0)
        if not self._last or not 0 < self._last - before <= MANY or self._now() >= self._forget_at:
            self._forget_at = self._now() + FORGET
            return None
        return range(before + 1, self._last + 1)

    def _read(self) -> int:
        try:
            return int(os.pread(_loadavg(), 128, 0).rsplit(None, 1)[-1])
        except (OSError, ValueError, IndexError):
            return 0


@cache
def _loadavg() -> int:
    """Open /proc/loadavg for the life of this process, since every round reads it."""
    return os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)


def settle_born(knob: Knob, kept: Collection[Kept], since: int) -> None:
    """Reset threads started after `since` (clock ticks since boot) that a killed owner had not seen.

    Such a thread may start another during a scan, so scans are repeated until there is nothing to do.
    """
    if knob.name in INHERITED:
        for _ in range(PASSES):
            if not _settle_born(knob, kept, since):
                return


def _settle_born(knob: Knob, kept: Iterable[Kept], since: int) -> int:
    """Scan once; return the number of threads that were reset."""
    count = 0
    parents = {pid: _origin(pid)[1] for pid in map(int, _processes()) if start_time(pid) >= since}
    threads = {each.target: each for each in kept if isinstance(each.target, ThreadRef)}
    known = {(thread.pid, thread.tid, thread.start_time) for thread in threads}
    for witness, each in threads.items():
        if witness.tid != witness.pid or each.ours:
            continue
        for pid in (witness.pid, *descendants({witness.pid}, parents)):
            for tid in map(int, _threads(pid)):
                with suppress(TreadleError):
                    born = thread_ref(tid, pid).start_time
                    if born >= since and (pid, tid, born) not in known:
                        count += give(knob, pid, tid, each.found)
    return count


def descendants(ancestors: Collection[int], parents: Mapping[int, int]) -> list[int]:
    """Return the keys of `parents` (process -> parent) that descend from `ancestors`, parents before their children."""
    found: dict[int, int] = {}
    left = dict(parents)
    while new := [pid for pid, parent in left.items() if parent in ancestors or parent in found]:
        found.update((pid, left.pop(pid)) for pid in new)
    return list(found)


def give(knob: Knob, pid: int, tid: int, value: Value) -> bool:
    """Set a thread's value if it differs; return whether it was set. Skip a thread that has ended or can't be set."""
    with suppress(TreadleError):
        thread = thread_ref(tid, pid)
        if not same(knob.read(thread), value):
            knob.write(thread, value)
            return True
    return False


def _threads(pid: int) -> set[str]:
    try:
        return set(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return set()


def _processes() -> set[str]:
    """Return the ids of all processes on this machine."""
    return {name for name in os.listdir("/proc") if name.isdecimal()}


def _origin(tid: int) -> tuple[int, int]:
    """Return the process of a thread and the parent of that process; zeros if the thread has ended."""
    try:
        with open(f"/proc/{tid}/status", "rb", buffering=0) as file:
            text = file.read(1024)
    except OSError:
        return 0, 0
    pid, parent = (int(text.partition(field)[2].split(None, 1)[0]) for field in (b"\nTgid:", b"\nPPid:"))
    return pid, parent
