"""Threads that are born while others of their process are scheduled: they begin with what we gave to their starter.

The kernel lets a new thread have the nice, the slice and the group of the one that starts it. It gets what its process
had before, so that this is what is found and put back later; and what each process had is in the journal, so that
whoever puts back for one that was killed finds those, too, that nobody had seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

from treadle.enforce.changes import same
from treadle.enforce.journal import Journal, Kept
from treadle.enforce.kernel import thread_ref
from treadle.enforce.knob import Knob, Value
from treadle.errors import TreadleError
from treadle.model import ThreadRef, Topology

INHERITED = ("nice", "slice", "group")
"""Knobs whose value a new thread has from its starter; real-time threads start ordinary ones."""


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
        self._last_born = b""
        for pid in pids:
            self._meet(pid)

    def settle(self, topology: Topology) -> None:
        """Give the new threads what their process had. To list threads is dear, and done only if any were born."""
        last = _last_born()  # before the list: who is born in between is found the next time
        if last and last == self._last_born and topology is self._seen:
            return
        self._last_born = last
        if topology is not self._seen:
            self._seen = topology
            for pid in {thread.pid for thread in topology.threads} - self._known.keys():
                self._meet(pid)
        for pid, known in self._known.items():
            threads = _threads(pid)
            for tid in threads - known:
                self._give(pid, int(tid), self._found[pid])
            self._known[pid] = threads

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

    def _give(self, pid: int, tid: int, found: Mapping[str, Value]) -> None:
        for knob in self._knobs:
            if knob.name in found:
                give(knob, pid, tid, found[knob.name])


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


def _last_born() -> bytes:
    """The id that the kernel gave out last, to a thread of whichever process. Empty where it does not say."""
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            return file.read(128).rsplit(None, 1)[-1]
    except (OSError, IndexError):
        return b""


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(1024)
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split(None, 2)[1])
