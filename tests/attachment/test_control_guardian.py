"""What makes an attachment safe: it is refused without a guardian, and follows what that has done."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from support import LONG
from treadle.attachment import plan
from treadle.attachment.attached_applications import AttachedApplications, Wanted
from treadle.attachment.attached_engine import Guard
from treadle.attachment.control import Attachment
from treadle.attachment.newcomers import Newcomers
from treadle.enforce import Per, Target, Value, kernel
from treadle.enforce.recovery.guardian import OFF, Guardian
from treadle.enforce.recovery.journal import Journal
from treadle.enforce.recovery.releasable import Releasable
from treadle.errors import EngineError
from treadle.model import Instance, Operator, Query, Topology
from treadle.values import Sample


def test_without_a_guardian_it_is_refused_and_leaves_no_journal(
    own_journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match="guardian: can't be started"):
        Attachment(Wanted(plan.make(None, "nice", 0.05, {}, {}, ("*",)), {}, {}, None, False), {}, {})
    assert list(own_journals.iterdir()) == []


def test_what_the_guardian_takes_off_counts_as_a_release_by_the_watchdog(own_journals: Path) -> None:
    thread, releasable = kernel.thread_ref(threading.get_native_id()), Releasable(InMemory())
    wanted = Wanted(plan.make(None, "nice", 0.05, {}, {}, ("*",)), {}, {}, None, False)
    members = AttachedApplications(wanted, Newcomers(()), dict)
    members.guards["app"] = guard = Guard(releasable, 1.0, 0.05, {}, sees=False)
    releasable.write(thread, 5.0)
    with Journal.open(own_journals) as journal:
        Guardian.start(journal, members.release_real_time)._hear(OFF + b"process 7 was stopped")
    guard.watchdog.stop()
    assert releasable.knob.read(thread) == 0.0
    assert releasable.reason == "process 7 was stopped"
    assert guard.watchdog.off


def test_threads_of_the_driver_that_starve_the_stages_are_let_go() -> None:
    """The CPU of all real-time threads counts: here a stage gets none, and the driver takes all."""
    topology = Topology(
        (Query("driver", (Operator("scheduler"),)), Query("high", (Operator("scan"),))),
        (Instance("driver", ("scheduler",), 0, "spark"), Instance("high", ("scan",), 0, "spark")),
        1,
    )
    releasable = Releasable(InMemory())
    guard = Guard(releasable, 1.0, 0.05, {}, sees=False)
    try:
        releasable.write(kernel.thread_ref(threading.get_native_id()), 5.0)
        began = time.monotonic()
        while not guard.watchdog.off:
            passed = time.monotonic() - began
            assert passed < LONG, "nobody has noticed"
            columns = {"queue": np.ones(2), "external_queue": np.ones(2)}
            sample = Sample(time.monotonic(), columns)
            guard.feed("app", sample, topology, passed, np.empty(0), 100.0, time.monotonic())
            threading.Event().wait(0.05)
    finally:
        guard.watchdog.stop()
    assert "without any progress" in releasable.reason


class InMemory:
    """A stand-in for real-time priorities, in memory."""

    name = "rt"
    per: Per = "thread"

    def __init__(self) -> None:
        self._values: dict[Target, Value] = {}

    def read(self, target: Target) -> Value:
        return self._values.get(target, 0.0)

    def write(self, target: Target, value: Value) -> None:
        self._values[target] = value
