from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from support import until
from treadle.attachment.targets import Claims
from treadle.engines.spark.application import Application, Process
from treadle.engines.spark.pulse import Pulse
from treadle.errors import EngineError
from treadle.observe.threads import start_time


@pytest.fixture
def processes() -> Iterator[tuple[Process, Process]]:
    sleepers = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    yield (of(sleepers[0].pid), of(sleepers[1].pid))
    for sleeper in sleepers:
        sleeper.kill()
        sleeper.wait()


def of(pid: int) -> Process:
    return Process(pid, start_time(pid, pid), False)


def test_an_executor_that_comes_later_is_claimed_too_unless_somebody_else_has_it(
    processes: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later = processes
    monkeypatch.setattr(Application, "look_again", lambda _: processes)
    monkeypatch.setattr("treadle.engines.spark.pulse.SCAN", 0.0)
    application, ours, others = Application("app-1", "a", "http://127.0.0.1:1", (first,)), Claims(), Claims()
    ours.take([application])
    assert others.admit(later)
    pulse = Pulse(application, 0.01, admits=ours.admit)
    try:
        until(lambda: later in ours._refused)
        assert pulse.processes == (first,)
        others.release()
        until(lambda: pulse.processes == processes)
        assert not others.admit(later)
    finally:
        pulse.close()
        ours.release()
    assert others.admit(later)
    others.release()


def test_all_are_claimed_or_none(processes: tuple[Process, Process]) -> None:
    both, ours, others = Application("app-1", "a", "", processes), Claims(), Claims()
    others.admit(processes[1])
    with pytest.raises(EngineError, match=f"process {processes[1].pid} of 'a': somebody else"):
        ours.take([both])
    assert others.admit(processes[0])
    others.release()


def test_the_claim_on_a_process_that_has_ended_is_given_up(processes: tuple[Process, Process]) -> None:
    claims, open_files = Claims(), len(os.listdir("/proc/self/fd"))
    for number in range(5):
        assert claims.admit(Process(processes[0].pid, number, False))  # this number was another one's then
    assert len(os.listdir("/proc/self/fd")) <= open_files + 1
    claims.release()
