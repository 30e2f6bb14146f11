"""Threads that are born while others of their process are scheduled: they begin with what we gave to their starter.

The kernel lets a new thread have the nice, the slice and the group of the one that starts it. It gets what its process
had before, so that this is what is found and put back later; and what each process had is in the journal, so that
whoever puts back for one that was killed finds those, too, that nobody had seen.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from treadle.enforce.changes import same
from treadle.enforce.journal import Journal, Kept
from treadle.enforce.kernel import thread_ref
from treadle.enforce.knob import Knob, Value
from treadle.errors import TreadleError
from treadle.model import ThreadRef, Topology

INHERITED = ("nice", "slice", "group")
"""Knobs whose value a new thread has from its starter; real-time threads start ordinary ones."""
MANY = 20
"""Births up to which it is quicker to look for each of them than to list all threads."""
FORGET = 1.0
"""Seconds after which all threads are listed if any was born, so that the ids of those that have ended are forgotten
long before the kernel gives them out again."""


class Heirs:
    """Of some processes, whose first threads are witnesses: they have what the process was started with.

    Those are none that are scheduled themselves.
    """

    def __init__(self, knobs: Iterable[Knob], pids: Iterable[int], journal: Journal | None = None) -> None:
        self._knobs = tuple(knob for knob in knobs if knob.name in INHERITED)
        self._journal = journal
        self._known: dict[int, set[str]] = {}
        self._found: dict[int, Mapping[str, Value]] = {}
        self._witnesses: list[tuple[Knob, ThreadRef]] = []
        self._seen: Topology | None = None
        self._births = Births()
        for pid in pids:
            self._meet(pid)

    def settle(self, topology: Topology) -> None:
        """Give the new threads what their process had."""
        new_processes = False
        if topology is not self._seen:
            self._seen = topology
            for pid in {thread.pid for thread in topology.threads} - self._known.keys():
                self._meet(pid)
                new_processes = True
        born = self._births.since_last_time()
        if born is None or new_processes:
            for pid, known in self._known.items():
                threads = _threads(pid)
                self._give_all(pid, threads - known)
                self._known[pid] = threads
        elif born:
            for pid, known in self._known.items():
                threads = {str(tid) for tid in born if os.path.exists(f"/proc/{pid}/task/{tid}")}
                self._give_all(pid, threads - known)
                known |= threads

    def close(self) -> None:
        """All is put back: no witness is needed any more."""
        for knob, witness in self._witnesses:
            if self._journal is not None:
                self._journal.back(knob, [witness])
        self._witnesses = []

    def _meet(self, pid: int) -> None:
        """A process as it is, or one that a thread of such a one has started by another: a Python worker."""
        starter = _parent(pid)
        found = self._found.get(_parent(starter))
        if found is not None:
            self._known[pid], self._found[pid] = _threads(pid), found
            for each in (starter, pid):
                self._give(each, each, found)
            return
        mine: dict[str, Value] = {}
        for knob in self._knobs:
            with suppress(TreadleError):
                first = thread_ref(pid, pid)
                mine[knob.name] = knob.read(first)
                if self._journal is not None:
                    self._journal.note(knob, [(first, mine[knob.name])], [])
                    self._witnesses.append((knob, first))
        self._known[pid], self._found[pid] = _threads(pid), mine

    def _give_all(self, pid: int, threads: set[str]) -> None:
        for tid in threads:
            self._give(pid, int(tid), self._found[pid])

    def _give(self, pid: int, tid: int, found: Mapping[str, Value]) -> None:
        for knob in self._knobs:
            if knob.name in found:
                give(knob, pid, tid, found[knob.name])


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
            with open("/proc/loadavg", "rb", buffering=0) as file:
                return int(file.read(128).rsplit(None, 1)[-1])
        except (OSError, ValueError, IndexError):
            return 0


def settle_born(knob: Knob, kept: Iterable[Kept], since: int) -> None:
    """What another process has left: threads that were born since then, and that it had never come to know."""
    if knob.name not in INHERITED:
        return
    threads = {each.target: each for each in kept if isinstance(each.target, ThreadRef)}
    known = {(thread.pid, thread.tid, thread.start_time) for thread in threads}
    for witness, each in threads.items():
        if witness.tid != witness.pid or each.ours:
            continue
        for tid in map(int, _threads(witness.pid)):
            with suppress(TreadleError):
                born = thread_ref(tid, witness.pid).start_time
                if born >= since and (witness.pid, tid, born) not in known:
                    give(knob, witness.pid, tid, each.found)


def give(knob: Knob, pid: int, tid: int, value: Value) -> None:
    """Set it, unless it is so, or the thread has ended, or is none that can be set."""
    with suppress(TreadleError):
        thread = thread_ref(tid, pid)
        if not same(knob.read(thread), value):
            knob.write(thread, value)


def _threads(pid: int) -> set[str]:
    try:
        return set(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return set()


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(1024)
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split(None, 2)[1])
