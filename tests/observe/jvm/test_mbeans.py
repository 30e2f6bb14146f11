"""MBeans come many at once, what fails costs only itself, and nobody without the password gets anything."""

from __future__ import annotations

import base64
import json
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle import jars
from treadle.errors import ConfigError, EngineError, TargetGone
from treadle.observe.jvm.attach import execute, find, look
from treadle.observe.jvm.mbeans import MBeans

Process = subprocess.Popen[bytes]
Start = Callable[..., Process]
NOBODY = 65534
LAGS = ("sample:type=lag,*", ["Lag"])


@pytest.fixture
def mbeans(jvm: Process, jolokia_jars: list[Path]) -> Iterator[MBeans]:
    opened = MBeans(jvm.pid)
    yield opened
    opened.close()


def test_many_beans_come_in_one_read(mbeans: MBeans) -> None:
    lags, threads, one = mbeans.read(
        [LAGS, ("java.lang:type=Threading", ["ThreadCount"]), ("sample:topic=t1,type=lag", [])]
    )
    assert lags == {f"sample:type=lag,topic=t{i}": {"Lag": 10.5 * i} for i in range(3)}
    assert threads["java.lang:type=Threading"]["ThreadCount"] > 3
    assert one["sample:topic=t1,type=lag"]["Topic"] == "t1"


def test_what_can_not_be_read_costs_only_itself(mbeans: MBeans) -> None:
    answers = mbeans.read(
        [
            ("no.such:type=bean", ["Lag"]),
            ("no.such:type=*", ["Lag"]),
            ("sample:type=lag,*", ["Broken"]),
            ("sample:type=lag,*", ["Broken", "Lag", "NoSuch"]),
            ("sample:topic=t0,type=lag", []),
        ]
    )
    assert answers[:3] == [{}, {}, {}]
    assert answers[3] == mbeans.read([LAGS])[0]
    assert answers[4]["sample:topic=t0,type=lag"].keys() == {"Lag", "Topic", "Unknown"}


def test_what_is_not_a_number_comes_as_none(mbeans: MBeans) -> None:
    (answer,) = mbeans.read([("sample:topic=t0,type=lag", ["Lag", "Unknown"])])
    assert answer == {"sample:topic=t0,type=lag": {"Lag": 0.0, "Unknown": None}}


def test_nothing_asked_is_nothing_read(mbeans: MBeans) -> None:
    assert mbeans.read([]) == []


def test_a_name_that_can_be_none_is_told(mbeans: MBeans) -> None:
    with pytest.raises(ConfigError, match="not a name of an MBean"):
        mbeans.read([LAGS, ("nonsense", [])])
    assert mbeans.read([LAGS])[0]


def test_a_connection_that_the_agent_closed_is_made_anew(mbeans: MBeans) -> None:
    before = mbeans.read([LAGS])
    assert mbeans._wire._socket is not None
    mbeans._wire._socket.shutdown(socket.SHUT_RDWR)
    assert mbeans.read([LAGS]) == before
    mbeans.close()
    assert mbeans.read([LAGS]) == before


def test_a_later_run_finds_the_agent_again(mbeans: MBeans, jvm: Process) -> None:
    loaded = announced(jvm.pid)
    again = MBeans(jvm.pid)
    assert again.read([LAGS])[0]
    again.close()
    assert announced(jvm.pid) == loaded


def test_without_its_password_another_agent_is_loaded_beside_it(mbeans: MBeans, jvm: Process) -> None:
    record(jvm.pid).unlink()
    again = MBeans(jvm.pid)
    assert again.read([LAGS]) == mbeans.read([LAGS])
    again.close()


def test_only_its_owner_can_read_the_password(mbeans: MBeans, jvm: Process) -> None:
    assert stat.S_IMODE(record(jvm.pid).stat().st_mode) == 0o600


def test_a_stranger_on_this_machine_gets_nothing(mbeans: MBeans, jvm: Process) -> None:
    question = {"type": "read", "mbean": "sample:type=lag,topic=t0", "attribute": "Lag"}
    assert ask(jvm.pid, question, "") == 401
    assert ask(jvm.pid, question, "guess") == 401
    assert ask(jvm.pid, question, password(jvm.pid)) == 200


def test_even_with_the_password_nothing_can_be_changed(mbeans: MBeans, jvm: Process) -> None:
    write = {"type": "write", "mbean": "java.lang:type=Memory", "attribute": "Verbose", "value": True}
    call = {"type": "exec", "mbean": "java.lang:type=Memory", "operation": "gc"}
    for question in (write, call):
        assert ask(jvm.pid, question, password(jvm.pid)) == 403


def test_unloading_leaves_nobody_listening(start: Start, jolokia_jars: list[Path]) -> None:
    process = start()
    opened = MBeans(process.pid)
    place = record(process.pid)
    assert place.exists()
    opened.unload()
    assert announced(process.pid) == ""
    assert not place.exists()
    with pytest.raises(EngineError, match="the agent is gone"):
        opened.read([LAGS])


def test_a_jvm_that_has_ended_is_gone_and_its_password_forgotten(start: Start, jolokia_jars: list[Path]) -> None:
    process = start()
    opened = MBeans(process.pid)
    place = record(process.pid)
    process.kill()
    process.wait()
    with pytest.raises(TargetGone, match="has ended"):
        opened.read([LAGS])
    with pytest.raises(TargetGone):
        MBeans(process.pid)
    another = MBeans(start().pid)
    another.close()
    assert not place.exists()


def test_jars_that_are_not_here_name_the_command_that_fetches_them(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path))
    with pytest.raises(EngineError, match="treadle jars jolokia"):
        MBeans(start().pid)


def test_the_jvm_of_another_user_gets_a_jar_that_it_can_read(
    root: None, start: Start, jolokia_jars: list[Path]
) -> None:
    process = start(user=NOBODY, group=NOBODY, extra_groups=[])
    opened = MBeans(process.pid)
    assert len(opened.read([LAGS])[0]) == 3
    opened.close()
    copy = Path(f"/tmp/treadle-{jars.bundle('jolokia').sums[jolokia_jars[0].name][:12]}-{NOBODY}.jar")
    assert copy.read_bytes() == jolokia_jars[0].read_bytes()
    copy.unlink()  # the JVM goes on reading the one it has
    copy.write_bytes(b"something else")
    record(process.pid).unlink()
    opened = MBeans(process.pid)  # which mends the copy before it is loaded
    opened.close()
    assert copy.read_bytes() == jolokia_jars[0].read_bytes()
    copy.unlink()


def test_a_container_is_entered(container: Process, jolokia_jars: list[Path]) -> None:
    (found,) = [jvm for jvm in find() if jvm.arguments == ("contained",)]
    opened = MBeans(found.pid)
    assert len(opened.read([LAGS])[0]) == 3
    opened.close()


def announced(pid: int) -> str:
    lines = execute(pid, "properties").splitlines()
    return next((line.partition("=")[2].replace("\\", "") for line in lines if line.startswith("jolokia.agent=")), "")


def record(pid: int) -> Path:
    return jars.home() / "agents" / f"{pid}-{look(pid).start_time}.json"


def password(pid: int) -> str:
    return str(json.loads(record(pid).read_text())["password"])


def ask(pid: int, question: dict[str, Any], secret: str) -> int:
    """The status of an answer: that of HTTP, or else Jolokia's own."""
    port = json.loads(record(pid).read_text())["port"]
    request = urllib.request.Request(f"http://127.0.0.1:{port}/jolokia/", json.dumps(question).encode())
    request.add_header("Authorization", "Basic " + base64.b64encode(f"treadle:{secret}".encode()).decode())
    try:
        with urllib.request.urlopen(request) as answer:
            return int(json.load(answer)["status"])
    except urllib.error.HTTPError as error:
        with error:
            return error.code
