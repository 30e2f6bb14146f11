from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from applications import SparkProcess
from treadle.broker import Broker
from treadle.engines.spark import application
from treadle.engines.spark.application import Application, Process
from treadle.engines.spark.jvms import EXECUTOR
from treadle.engines.spark.queries.rest import Rest
from treadle.errors import ConfigError, EngineError
from treadle.jvm import Jvm
from treadle.linux import users
from treadle.linux.thread_times import start_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")


def test_the_driver_is_found_by_its_process(attached: SparkProcess) -> None:
    found = Application.find(pid=attached.pid)
    assert (found.name, found.ui) == (attached.told["name"], attached.told["ui"])
    assert found.local
    assert [(process.pid, process.driver) for process in found.processes] == [(attached.pid, True)]
    assert found.look_again() == found.processes


def test_a_python_application_is_found_by_the_process_of_python(attached: SparkProcess) -> None:
    assert Application.find(pid=int(attached.told["python"])) == Application.find(pid=attached.pid)


def test_it_is_found_by_name_and_by_the_address_of_its_ui(attached: SparkProcess) -> None:
    by_pid = Application.find(pid=attached.pid)
    assert Application.find(name=attached.told["name"]) == by_pid
    assert Application.find(ui=attached.told["ui"]) == by_pid
    assert Application.find(ui=attached.told["ui"].removeprefix("http://")).id == by_pid.id


def test_a_jvm_that_is_not_spark_is_one_clear_error(broker: Broker) -> None:
    with pytest.raises(EngineError, match=rf"process {broker.pid}: is a JVM, but runs no Spark application \(kafka"):
        Application.find(pid=broker.pid)


def test_a_process_that_is_no_jvm_is_one_clear_error() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(EngineError, match="is not a JVM"):
            Application.find(pid=process.pid)
        process.communicate(b"\n")


def test_no_process_and_no_application_are_clear_errors(attached: SparkProcess) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(EngineError, match="there is no such process"):
        Application.find(pid=gone.pid)
    with pytest.raises(EngineError, match=r"no Spark application is called 'nobody'.*runs here: .*reads numbers"):
        Application.find(name="nobody")
    with pytest.raises(EngineError, match="does not answer"):
        Application.find(ui="http://127.0.0.1:1")


@pytest.mark.parametrize("given", [{}, {"pid": 1, "name": "a"}, {"name": "a", "ui": "b"}])
def test_one_way_to_name_it_is_asked_for(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="say which application"):
        Application.find(**given)  # type: ignore[arg-type]


def test_with_its_ui_off_it_says_how_to_turn_it_on(spark: SparkSession) -> None:
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    with pytest.raises(EngineError, match=r"its UI is off.*spark\.ui\.enabled=true"):
        Application.find(pid=pid)


def test_a_process_that_has_ended_or_was_replaced_is_left_out() -> None:
    me = Process(os.getpid(), 1, driver=True)  # that id, but another start
    assert Application("local-process-1", "n", "", (me,)).look_again() == ()


@pytest.fixture
def sleepers() -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    """Starts a process of a user, given by its uid."""
    started: list[subprocess.Popen[bytes]] = []

    def start(uid: int) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["/bin/sleep", "600"], user=uid, group=uid, extra_groups=[]))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def jvm_of(process: subprocess.Popen[bytes], main: str, *arguments: str) -> Jvm:
    """What a scan says of a process that claims to be this."""
    return Jvm(process.pid, start_time(process.pid, process.pid), "", main, arguments)


@AS_ROOT
def test_a_process_of_another_user_that_looks_like_an_executor_is_left_alone(
    sleepers: Callable[[int], subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine, foreign = sleepers(0), sleepers(NOBODY)
    executors = [jvm_of(each, f"a.{EXECUTOR}", "--app-id", "app-7") for each in (mine, foreign)]
    monkeypatch.setattr("treadle.jvm.find", lambda: executors)
    found = Application("app-7", "shop", "", (), owner=0)
    for _ in range(3):
        assert [process.pid for process in found.look_again()] == [mine.pid]
    assert [record.getMessage() for record in caplog.records] == [
        f"processes of user {users.name(NOBODY)} look like executors of app-7, which belongs to root: they are skipped "
        "(add one by --pid)"
    ]
    assert Application("app-7", "shop", "", ()).look_again() == ()


@AS_ROOT
def test_a_name_means_applications_of_one_user_and_nobody_elses_jvm_is_looked_into(
    sleepers: Callable[[int], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = "org.apache.spark.deploy.SparkSubmit"
    mine, foreign = jvm_of(sleepers(0), driver), jvm_of(sleepers(NOBODY), driver)
    looked: list[int] = []

    def look(found: Jvm, *, agent: bool = False) -> application._Driver:
        looked.append(found.pid)
        return application._Driver(found, Rest("http://127.0.0.1:1"), local=True)

    monkeypatch.setattr("treadle.jvm.find", lambda: [mine, foreign])
    monkeypatch.setattr(application, "_driver", look)
    monkeypatch.setattr(Rest, "title", lambda _: "shop")
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert Application.find(name="shop").processes[0].pid == mine.pid
    assert [each.owner for each in Application.find_all("sh*")] == [0]
    assert [each.processes[0].pid for each in application.NewApplicationFinder(["sh*"]).look()] == [mine.pid]
    assert set(looked) == {mine.pid}
    assert Application.find(name="shop", user=NOBODY).processes[0].pid == foreign.pid
    assert [each.owner for each in application.NewApplicationFinder(["sh*"], NOBODY).look()] == [NOBODY]
    looked.clear()
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert Application.find(name="shop").processes[0].pid == foreign.pid
    monkeypatch.setenv("SUDO_UID", "12345")
    everybody = ", ".join(sorted(["root", users.name(NOBODY)]))
    with pytest.raises(EngineError, match=rf"called 'shop' \(user 12345 runs none here.*{everybody}.*--user"):
        Application.find(name="shop")
    assert set(looked) == {foreign.pid}


@AS_ROOT
def test_another_users_process_does_not_pass_for_the_one_that_listens_at_a_ui(
    sleepers: Callable[[int], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'[{"id": "app-9", "name": "shop"}]')

        def log_message(self, *_: object) -> None:
            pass

    driver = "org.apache.spark.deploy.SparkSubmit"
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as ui:
        threading.Thread(target=ui.serve_forever).start()
        rest = Rest(f"http://127.0.0.1:{ui.server_port}")
        thief, here = (
            jvm_of(sleepers(NOBODY), driver),
            Jvm(os.getpid(), start_time(os.getpid(), os.getpid()), "", "", ()),
        )
        there = [thief]
        monkeypatch.setattr("treadle.jvm.find", list)
        monkeypatch.setattr(
            application, "_drivers", lambda *_: [application._Driver(x, rest, local=True) for x in there]
        )
        monkeypatch.setattr(Rest, "title", lambda _: "shop")
        try:
            with pytest.raises(EngineError, match="no process of this application is on this host for user"):
                Application.find(ui=rest.address, user=4)
            there.append(here)
            assert Application.find(ui=rest.address, user=4).processes[0].pid == os.getpid()
        finally:
            ui.shutdown()
