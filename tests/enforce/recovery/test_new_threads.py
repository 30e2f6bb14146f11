"""Threads and processes that are born of threads whose nice was changed, in a real process."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.enforce.kernel import facts, thread_ref
from treadle.enforce.kernel.nice import NiceKnob
from treadle.enforce.recovery import journal_book
from treadle.enforce.recovery.journal import Journal
from treadle.enforce.recovery.journal_book import Kept
from treadle.enforce.recovery.new_threads import MANY, Births, NewThreadReset, settle_born
from treadle.model import Topology

NICE = next(fact for fact in facts() if fact.what == "nice")
pytestmark = pytest.mark.skipif(not NICE.works, reason=f"{NICE.why} ({NICE.remedy})")
NOTHING = Topology((), ())

FAMILY = """
import os, subprocess, sys, threading
def child():
    print(threading.get_native_id(), flush=True); threading.Event().wait()
def parent():
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7)
    print(threading.get_native_id(), flush=True)
    for line in sys.stdin:
        if line == "thread\\n":
            threading.Thread(target=child, daemon=True).start()
        else:
            subprocess.Popen([sys.executable, "-c", HOUSEHOLD], stdin=subprocess.PIPE)
HOUSEHOLD = '''
import subprocess, sys, threading
def inner():
    print(threading.get_native_id(), flush=True); sys.stdin.read()
code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
print(threading.get_native_id(), flush=True)
threading.Thread(target=inner).start()
subprocess.Popen([sys.executable, "-c", code])
'''
threading.Thread(target=parent).start()
"""


class Family:
    """A process with a thread of nice 7, which starts another one, or processes, when it is told to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self.parent = self._heard()

    def bear(self) -> int:
        (child,) = self._tell("thread", 1)
        return child

    def fork(self) -> list[int]:
        """A process with two threads and a process of its own: the ids of these three, the first one's first."""
        return self._tell("process", 3)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _tell(self, what: str, count: int) -> list[int]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        born = [self._heard() for _ in range(count)]
        assert [nice(each) for each in born] == [7] * count, "the kernel lets them inherit it"
        return born

    def _heard(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def nice(tid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, tid)


@pytest.fixture
def family() -> Iterator[Family]:
    started = Family()
    yield started
    started.end()


def test_a_new_thread_gets_what_its_process_had_and_only_once(family: Family) -> None:
    heirs = NewThreadReset([NiceKnob()], [family.pid])
    heirs.settle(NOTHING)
    assert nice(family.parent) == 7, "it was there before"
    child = family.bear()
    heirs.settle(NOTHING)
    assert nice(child) == nice(family.pid)
    os.setpriority(os.PRIO_PROCESS, child, 3)
    heirs.settle(NOTHING)
    assert nice(child) == 3, "it is not new any more"


@pytest.mark.parametrize("many", [0, 10**6])
def test_a_new_process_and_all_in_it_get_what_that_of_its_starter_had(
    family: Family, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the births are told one by one, or found by a look at all processes."""
    monkeypatch.setattr("treadle.enforce.recovery.new_threads.MANY", many)
    monkeypatch.setattr("treadle.enforce.recovery.new_threads.FORGET", math.inf)
    heirs = NewThreadReset([NiceKnob()], [family.pid])
    heirs.settle(NOTHING)
    born = family.fork()
    heirs.settle(NOTHING)
    assert [nice(each) for each in born] == [nice(family.pid)] * 3
    os.setpriority(os.PRIO_PROCESS, born[0], 3)
    family.bear()
    heirs.settle(NOTHING)
    assert nice(born[0]) == 3, "it is not new any more"


def test_a_process_that_was_there_before_stays_as_it_is(family: Family) -> None:
    before = family.fork()
    heirs = NewThreadReset([NiceKnob()], [family.pid])
    heirs.settle(NOTHING)
    family.bear()
    heirs.settle(NOTHING)
    assert [nice(each) for each in before] == [7] * 3


def test_processes_that_nobody_had_come_to_know_are_found_by_the_one_who_puts_back(family: Family) -> None:
    knob = NiceKnob()
    first = thread_ref(family.pid, family.pid)
    born = family.fork()
    kept = [Kept(0, first, knob.read(first))]
    settle_born(knob, kept, since=2**62)
    assert [nice(each) for each in born] == [7] * 3, "they are older than what is put back"
    settle_born(knob, kept, since=thread_ref(born[0], born[0]).start_time)
    assert [nice(each) for each in born] == [nice(family.pid)] * 3


def test_what_nobody_had_come_to_know_is_found_by_the_one_who_puts_back(family: Family) -> None:
    knob = NiceKnob()
    first, parent = thread_ref(family.pid, family.pid), thread_ref(family.parent, family.pid)
    kept = [Kept(0, first, knob.read(first)), Kept(0, parent, 7.0, (7.0,))]
    child = family.bear()
    settle_born(knob, kept, since=2**62)
    assert nice(child) == 7, "it is older than what is put back"
    settle_born(knob, kept, since=first.start_time)
    assert nice(child) == nice(family.pid)
    assert nice(family.parent) == 7, "that one is the enforcer's business"


def test_a_journal_has_the_witnesses_for_as_long_as_they_are_needed(family: Family, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    book = Journal.open(tmp_path / "state")
    heirs = NewThreadReset([NiceKnob()], [family.pid], book)
    (witness,) = journal_book.read(book.path).kept.values()
    assert (witness.target, witness.ours) == (thread_ref(family.pid, family.pid), ())
    heirs.close()
    assert len(book) == 0
    book.close()
    assert not book.path.exists()


def test_births_are_told_by_the_ids_since_the_last_time() -> None:
    births = Births(now=lambda: 0.0)
    assert births.since_last_time() is None  # the first time nothing is known
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        born = births.since_last_time()
    assert born is None or child.pid in born


def test_many_births_are_not_told_one_by_one() -> None:
    births = Births(now=lambda: 0.0)
    births.since_last_time()
    for _ in range(MANY + 1):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    assert births.since_last_time() is None
