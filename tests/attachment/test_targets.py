from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support import until
from treadle.attachment import targets
from treadle.attachment.targets import Claims, Name, Ui
from treadle.engines.spark.application import Application, Process
from treadle.engines.spark.slow_poller import SlowPoller
from treadle.errors import EngineError
from treadle.linux.thread_times import start_time


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
    monkeypatch.setattr("treadle.engines.spark.slow_poller.SCAN", 0.0)
    application, ours, others = Application("app-1", "a", "http://127.0.0.1:1", (first,)), Claims(), Claims()
    ours.take([application])
    assert others.admit(later)
    pulse = SlowPoller(application, 0.01, admits=ours.admit)
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
    with pytest.raises(EngineError, match=f"process {processes[1].pid} of 'a': another treadle process"):
        ours.take([both])
    assert others.admit(processes[0])
    others.release()


def test_the_claim_on_a_process_that_has_ended_is_given_up(processes: tuple[Process, Process]) -> None:
    claims, open_files = Claims(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with subprocess.Popen(["sleep", "600"]) as other:
            assert claims.admit(of(other.pid))
            other.kill()
    assert claims.admit(processes[0])
    assert len(os.listdir("/proc/self/fd")) <= open_files + 1
    claims.release()


def test_a_process_that_ended_before_it_was_claimed_hinders_nobody(processes: tuple[Process, Process]) -> None:
    gone, claims = Process(processes[0].pid, 1, False), Claims()
    claims.take([Application("app-1", "a", "", (gone, processes[1]))])
    assert not claims.admit(gone)
    assert not Claims().admit(processes[1])
    claims.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
def test_another_user_that_takes_every_name_first_keeps_nobody_from_attaching(
    processes: tuple[Process, Process],
) -> None:
    names = [f"treadle-{kind}-{pid}-{began}" for kind in ("attach", "status") for pid, began, _ in processes]
    with subprocess.Popen(
        [sys.executable, "-c", SQUATS, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == b"ready\n"
        claims = Claims()
        claims.take([Application("app-1", "a", "", processes)])
        claims.release()
        squatter.kill()


SQUATS = """
import os, socket, sys
os.setresuid(65534, 65534, 65534)
kept = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in sys.argv[1:]]
for each, name in zip(kept, sys.argv[1:]):
    each.bind("\\0" + name)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["4242", ":1", "shop:", "a:b"])
def test_text_without_a_port_or_scheme_is_a_name_also_a_number(name: str) -> None:
    assert targets._explicit(name) == [Name(name)]


def test_text_that_looks_like_an_address_is_one_unless_it_is_said_to_be_a_name() -> None:
    assert targets._explicit(["http://h", "h:4040"]) == [Ui("http://h"), Ui("h:4040")]
    assert targets._explicit([Name("h:4040"), 4242]) == [Name("h:4040"), 4242]
    assert targets.patterns(["shop-*", Name("http://*"), "http://*", 5]) == ("shop-*", "http://*")
