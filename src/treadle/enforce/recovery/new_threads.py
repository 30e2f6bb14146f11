"""Threads and processes that scheduled threads give birth to: they begin with what we gave to their starter.

The kernel lets a new thread have the nice, the slice and the group of the one that starts it. It gets what its process
had before, so that this is what is found and put back later; and what each process had is in the journal, so that
whoever puts back for one that was killed finds those, too, that nobody had seen. A process whose starter has ended
before anybody looked is told by nothing.
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
"""Knobs whose value a new thread has from its starter; real-time threads start ordinary ones, in their own group."""
MANY = 20
"""Births up to which it is quicker to look for each of them than to list all threads."""
PASSES = 5
"""At most, where nobody is to be left out."""
FORGET = 1.0
"""Seconds after which all threads are listed if any was born, so that the ids of those that have ended are forgotten
long before the kernel gives them out again."""


class NewThreadReset:
    """Of some processes, whose first threads are witnesses: they have what the process was started with.

    Those are none that are scheduled themselves. A process that was started by one of them since then has what that
    one had.
    """

    def __init__(self, knobs: Iterable[Knob], pids: Iterable[int], journal: Journal | None = None) -> None:
        knobs = tuple(knobs)
        self._knobs = tuple(knob for knob in knobs if knob.name in INHERITED)
        self._ways_home = [way for knob in knobs if (way := getattr(knob, "send_home", None)) is not None]
        """Of knobs that keep their threads elsewhere, where those are born that they start."""
        self._journal = journal
        self._known: dict[int, set[str]] = {}
        self._found: dict[int, Mapping[str, Value]] = {}
        self._witnesses: list[tuple[Knob, ThreadRef]] = []
        self._seen: Topology | None = None
        self._births = Births()
        self._unborn: list[int] = []
        """Ids that were given out, but whose threads were not there yet: they are looked for once more."""
        self._processes = _processes()
        """Those that there were at the last look at all: to look at the others again would be dear."""
        for pid in pids:
            self._meet(pid, journal)

    def settle(self, topology: Topology, *, all_threads: bool = False) -> None:
        """Give the new threads, and those of new processes, what their process had."""
        born, late = self._births.since_last_time(), self._unborn
        self._unborn = []
        if all_threads:
            for _ in range(PASSES):  # a new one may have started another before it was given anything
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
        """Whether there is somebody to look for in the next round."""
        return bool(self._unborn)

    def close(self) -> None:
        """All is put back: no witness is needed any more."""
        for knob, witness in self._witnesses:
            if self._journal is not None:
                self._journal.back(knob, [witness])
        self._witnesses = []

    def _meet(self, pid: int, journal: Journal | None) -> None:
        """A process as it is. Its first thread is noted, unless it is one of those that are scheduled."""
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
        """Whether there was anybody new."""
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
        """Some thread of the machine, that was just born; whether it is there."""
        pid, parent = _origin(tid)
        if pid == tid:
            self._adopt({pid: parent})
        elif pid in self._known and str(tid) not in self._known[pid]:
            self._known[pid].add(str(tid))
            self._give_all(pid, {str(tid)})
        return pid != 0

    def _adopt(self, parents: Mapping[int, int]) -> None:
        """Of new processes, those that are children of ours, and children of these."""
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
    """Which ids the kernel has given to threads, of whichever process: to list those of a large process is dear.

    It gives them out in order, and says in /proc/loadavg which one was the last.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = 0
        self._forget_at = -math.inf

    def since_last_time(self) -> range | None:
        """The ids since then; None if they are too many, or began anew, or it is long since all were looked at."""
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
    """Open for as long as this process lives: it is read in every round."""
    return os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)


def settle_born(knob: Knob, kept: Collection[Kept], since: int) -> None:
    """What another process has left: threads that were born since then, and that it had never come to know.

    One of them may start another while this looks, so it looks again until there was nothing to do.
    """
    if knob.name in INHERITED:
        for _ in range(PASSES):
            if not _settle_born(knob, kept, since):
                return


def _settle_born(knob: Knob, kept: Iterable[Kept], since: int) -> int:
    """How many it had to set."""
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
    """Of processes with their parents those that come from some others, a parent before its children."""
    found: dict[int, int] = {}
    left = dict(parents)
    while new := [pid for pid, parent in left.items() if parent in ancestors or parent in found]:
        found.update((pid, left.pop(pid)) for pid in new)
    return list(found)


def give(knob: Knob, pid: int, tid: int, value: Value) -> bool:
    """Set it, unless it is so, or the thread has ended, or is none that can be set; whether it was."""
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
    """The ids of all on this machine."""
    return {name for name in os.listdir("/proc") if name.isdecimal()}


def _origin(tid: int) -> tuple[int, int]:
    """The process of a thread, and the parent of that; zeros if it has ended."""
    try:
        with open(f"/proc/{tid}/status", "rb", buffering=0) as file:
            text = file.read(1024)
    except OSError:
        return 0, 0
    pid, parent = (int(text.partition(field)[2].split(None, 1)[0]) for field in (b"\nTgid:", b"\nPPid:"))
    return pid, parent
