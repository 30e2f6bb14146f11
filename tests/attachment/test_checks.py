"""What is looked at before anything is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.attachment import checks, plan
from treadle.enforce import kernel
from treadle.enforce.recovery.journal import Journal
from treadle.engines.spark.application import Application, Process
from treadle.errors import EngineError, RightsError, TreadleError


def test_only_what_the_plan_needs_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """To try real-time takes of the budget of others, as long as it lasts."""
    monkeypatch.delattr(sys.modules["treadle.enforce.kernel.facts"], "RealtimeKnob")
    try:
        checks.check(plan.make(None, "nice", 0.05, {}, {}, ("*",)), [])
    except (EngineError, RightsError) as error:
        pytest.skip(str(error))


def test_real_time_without_any_limit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("-1\n")
    monkeypatch.setattr("treadle.enforce.kernel.budget.LIMIT", str(tmp_path / "limit"))
    with pytest.raises(TreadleError, match=r"enforce 'rt'.*nothing limits real-time threads.*write 950000"):
        checks.check(plan.make(None, "rt", 0.05, {}, {}, ("*",)), [])


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        yield sleeper.pid
        sleeper.kill()


def app(pid: int) -> Application:
    return Application(f"app-{pid}", f"app-{pid}", "", (Process(pid, 0, True),))


def nicer(pid: int, *, on_purpose: bool, knob: str = "nice") -> None:
    """As if a process that is dead by now had given this one a nice of 5, found a 0, and left it so."""
    try:
        nice = kernel.make("nice")
    except RightsError as error:
        pytest.skip(str(error))
    thread = kernel.thread_ref(pid, pid)
    with Journal.open() as journal:
        journal.note(nice, [(thread, 0.0)], [(thread, 5.0)])
        if on_purpose:
            journal.leave()
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    for line in lines:
        if line[0] == "owner":
            line[2] = 2**22 - 1
        elif line[0] == "knob":
            line[2] = knob
    journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.setpriority(os.PRIO_PROCESS, pid, 5)


@pytest.mark.usefixtures("own_journals")
def test_what_was_left_on_purpose_is_put_back_only_for_whom_it_is_about(pid: int) -> None:
    nicer(pid, on_purpose=True)
    checks.settle([app(os.getpid())])
    assert os.getpriority(os.PRIO_PROCESS, pid) == 5
    checks.settle([app(pid)])
    assert os.getpriority(os.PRIO_PROCESS, pid) == 0


@pytest.mark.usefixtures("own_journals")
def test_what_a_killed_one_has_left_is_put_back_by_whoever_comes_and_all_of_it_by_restore(pid: int) -> None:
    nicer(pid, on_purpose=False)
    checks.settle([app(os.getpid())])
    assert os.getpriority(os.PRIO_PROCESS, pid) == 0
    nicer(pid, on_purpose=True)
    checks.settle_leftovers()
    assert os.getpriority(os.PRIO_PROCESS, pid) == 0


@pytest.mark.usefixtures("own_journals")
def test_a_process_that_can_not_be_put_back_is_refused_and_no_other(pid: int) -> None:
    nicer(pid, on_purpose=False, knob="nicest")
    checks.settle([app(os.getpid())])
    with pytest.raises(
        EngineError, match=f"process {pid}: a value that an earlier treadle process changed can't be restored"
    ):
        checks.settle([app(pid)])
