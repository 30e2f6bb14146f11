from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from mutations import mutated
from treadle.attachment.shown import published, shape
from treadle.attachment.shown.published import Published, ask
from treadle.cli.attach_tables import table
from treadle.engines.spark.application import Application, Process
from treadle.errors import EngineError
from treadle.linux.files import runtime_folder
from treadle.linux.thread_times import start_time

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")

STATUS: dict[str, Any] = {
    "applications": [{"name": "shop", "id": "a", "ui": "", "pids": [1], "ended": False}],
    "policy": "user-priority",
    "enforce": "nice",
    "period": 0.05,
    "dry_run": False,
    "rounds": 7,
    "skipped": 0,
    "changes": 3,
    "round_ms": 0.4,
    "failures": {},
    "released": {"shop": "no progress"},
    "unseen": [],
    "rows": [
        {
            "application": "shop",
            "query": "alerts",
            "operator": "scan+filter",
            "index": 1,
            "threads": [{"pid": 1, "tid": 2, "name": "task", "role": "main", "has": "nice -5"}],
            "queue": 12.0,
            "queue_is_estimate": True,
            "latency": 0.25,
            "cost": 0.001,
            "cpu": 0.5,
            "wait": None,
            "priority": 2.0,
            "change": "nice 0 -> -5",
            "why": "user-priority: decided",
            "changed": 1.5,
        }
    ],
    "quality": {
        "queries": [
            {"query": "alerts", "min_accuracy": 0.5, "promised": 0.7, "accuracy": None, "real_time": False}
            | {"measured": True, "keeps_all": None}
        ],
        "suspended": {},
        "short": ["fraud gets less"],
    },
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the sockets of all users are in these tests."""
    monkeypatch.setattr(runtime_folder, "places", lambda _: [tmp_path / "treadle"])
    return tmp_path / "treadle"


@pytest.fixture
def sleeper() -> Iterator[Process]:
    uid = NOBODY if os.geteuid() == 0 else None
    with subprocess.Popen(["/bin/sleep", "600"], user=uid, group=uid, extra_groups=[] if uid else None) as process:
        yield Process(process.pid, start_time(process.pid, process.pid), False)
        process.kill()


def of(process: Process) -> list[Application]:
    return [Application("app-1", "shop", "", (process,))]


def test_the_status_is_asked_for_from_elsewhere_until_it_is_closed(place: Path, sleeper: Process) -> None:
    assert ask(of(sleeper)) is None
    shown = Published(lambda: STATUS)
    shown.add([sleeper])
    assert ask(of(sleeper)) == STATUS
    shown.close()
    assert ask(of(sleeper)) is None
    assert list(place.glob("status-*")) == []


def test_what_a_killed_one_left_is_replaced_and_swept_away(place: Path, sleeper: Process) -> None:
    place.mkdir(mode=0o700)
    for name in (f"status-{sleeper.pid}-{sleeper.start_time}", "status-1-1"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(place / name))
    shown = Published(lambda: STATUS)
    shown.add([sleeper])
    assert [each.name for each in place.glob("status-*")] == [f"status-{sleeper.pid}-{sleeper.start_time}"]
    assert ask(of(sleeper)) == STATUS
    shown.close()


@AS_ROOT
def test_a_folder_that_another_user_took_first_costs_only_the_view_from_elsewhere(
    place: Path, sleeper: Process, caplog: pytest.LogCaptureFixture
) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, NOBODY, NOBODY)
    shown = Published(lambda: STATUS)
    shown.add([sleeper])
    assert "`treadle top` can't show this attachment" in caplog.text
    assert ask(of(Process(os.getpid(), 1, False))) is None
    shown.close()


ANSWERS = """
import os, socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
uid = int(sys.argv[2])
os.setresuid(uid, uid, uid)
listening.listen()
print("ready", flush=True)
while True:
    connection, _ = listening.accept()
    connection.sendall(b"not a status")
    connection.close()
"""


@AS_ROOT
@pytest.mark.parametrize(("uid", "heard"), [(NOBODY, True), (12345, False)])
def test_only_root_ourselves_and_the_owner_of_the_process_are_believed(
    tmp_path: Path, sleeper: Process, monkeypatch: pytest.MonkeyPatch, uid: int, heard: bool
) -> None:
    folder, nowhere = tmp_path / "theirs", tmp_path / "nowhere"
    monkeypatch.setattr(runtime_folder, "places", lambda of: [folder if of == NOBODY else nowhere])
    folder.mkdir(mode=0o700)
    path = folder / f"status-{sleeper.pid}-{sleeper.start_time}"
    words = [sys.executable, "-c", ANSWERS, str(path), str(uid)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            os.chown(folder, NOBODY, NOBODY)
            if heard:
                with pytest.raises(EngineError, match=f"^treadle process {server.pid}: its status can't"):
                    ask(of(sleeper))
            else:
                assert ask(of(sleeper)) is None
            path.rename(tmp_path / "real")
            path.symlink_to(tmp_path / "real")
            assert ask(of(sleeper)) is None
        finally:
            server.kill()


def test_an_answer_without_end_is_a_clear_error(place: Path, sleeper: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "LARGEST", 1000)
    place.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / f"status-{sleeper.pid}-{sleeper.start_time}"))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                try:
                    while True:
                        connection.sendall(b" " * 100)
                except OSError:
                    return

        endless = threading.Thread(target=answer)
        endless.start()
        with pytest.raises(EngineError, match=f"^treadle process {os.getpid()}: sends more than 1000 bytes"):
            ask(of(sleeper))
        endless.join()


@settings(max_examples=200)
@given(st.integers(0, 2**64))
def test_whatever_comes_as_a_status_is_one_that_can_be_shown_or_a_clear_error(seed: int) -> None:
    chance, console = random.Random(seed), Console(file=open(os.devnull, "w"), width=200)  # noqa: SIM115
    with console.file:
        for number in range(50):
            try:
                status = shape.read(mutated(STATUS, chance))
            except EngineError:
                continue
            made = table(status)
            json.dumps(status)
            if number % 10 == 0:  # drawing is slow
                console.print(made)


def test_a_status_that_fails_once_is_given_the_next_time(
    place: Path, sleeper: Process, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = [AttributeError("not made yet"), STATUS]

    def status() -> Any:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    shown = Published(status)
    shown.add([sleeper])
    try:
        assert ask(of(sleeper)) is None
        assert ask(of(sleeper)) == STATUS
    finally:
        shown.close()
    assert "the status could not be sent" in caplog.text


def test_sockets_of_our_own_are_not_asked_when_others_are_added(place: Path, sleeper: Process) -> None:
    asked: list[bool] = []

    def status() -> Any:
        asked.append(True)
        return STATUS

    shown = Published(status)
    shown.add([sleeper])
    shown.add([])
    shown.close()
    assert asked == []
