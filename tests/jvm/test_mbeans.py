"""MBeans come many at once, what fails costs only itself, and nobody without the password gets anything."""

from __future__ import annotations

import base64
import json
import os
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import FUZZ, JSON, NUMBERS, objects, sent
from treadle import jars
from treadle.errors import ConfigError, EngineError, TargetGone, TreadleError
from treadle.jvm import loading
from treadle.jvm import mbeans as module
from treadle.jvm.attach import execute, find, look
from treadle.jvm.mbeans import MBeans, parse

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
    with pytest.raises(ConfigError, match="not the name of an MBean"):
        mbeans.read([LAGS, ("nonsense", [])])
    assert mbeans.read([LAGS])[0]


def test_a_connection_that_the_agent_closed_is_made_anew(mbeans: MBeans) -> None:
    before = mbeans.read([LAGS])
    assert mbeans._wire._connection.sock is not None
    mbeans._wire._connection.sock.shutdown(socket.SHUT_RDWR)
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


def test_an_agent_that_was_stopped_is_said_to_be_gone(start: Start, jolokia_jars: list[Path]) -> None:
    process = start()
    opened = MBeans(process.pid)
    loading.load(process.pid, module._jar(), "mode=stop", timeout=module.START)
    assert announced(process.pid) == ""
    with pytest.raises(EngineError, match="the agent has disconnected"):
        opened.read([LAGS])


def test_a_record_that_is_no_ordinary_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path))
    pipe = module._record(1, 1)
    pipe.parent.mkdir()
    os.mkfifo(pipe, 0o600)  # to open it for reading would wait for a writer
    assert module._remembered(1, 1) is None
    pipe.unlink()
    (tmp_path / "elsewhere").write_text('{"port": 1, "password": "x"}')
    pipe.symlink_to(tmp_path / "elsewhere")
    assert module._remembered(1, 1) is None


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


HEADS = st.lists(
    st.one_of(
        st.sampled_from(["Transfer-Encoding: chunked", "Content-Type: x", "\x00"]),
        st.one_of(NUMBERS, st.just("7")).map(lambda number: f"Content-Length: {number}"),
    ),
    max_size=2,
)
BODIES = st.one_of(
    st.binary(max_size=30),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.lists(st.tuples(st.sampled_from(["1", "-1", "fffffff", "0", "g", ""]), st.binary(max_size=3)), max_size=3).map(
        lambda chunks: b"".join(size.encode() + b"\r\n" + data + b"\r\n" for size, data in chunks)
    ),
)
ANSWERS = st.builds(
    lambda status, heads, body: "\r\n".join((f"HTTP/1.1 {status}", *heads, "", "")).encode() + body,
    st.sampled_from(["200 OK", "400 \x1b[2J", "abc", "2000", ""]),
    HEADS,
    BODIES,
)


@FUZZ
@given(st.one_of(st.binary(max_size=60), ANSWERS))
def test_any_answer_is_survived(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    with sent(answer) as connection, closing(unconnected(60.0)) as mbeans, suppress(TreadleError):
        monkeypatch.setattr(module, "_dial", lambda *_: connection)
        mbeans.read([LAGS])


REPLIES = st.lists(st.one_of(JSON, objects("value"), st.fixed_dictionaries({"value": objects("a:b=c")})), max_size=2)


@FUZZ
@given(st.one_of(JSON, REPLIES))
def test_any_json_is_survived(value: object) -> None:
    for names in (["a:b=c"], ["a:*", "a:b=c"]):
        with suppress(TreadleError):
            for beans in parse(names, json.dumps(value).encode()):
                assert all(isinstance(read, dict) for read in beans.values())


def test_an_answer_without_end_or_too_slow_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"8000\r\n" + bytes(1_000_000)
    monkeypatch.setattr(module, "LONGEST", 10_000)
    with sent(endless) as connection:
        monkeypatch.setattr(module, "_dial", lambda *_: connection)
        with pytest.raises(EngineError, match="more than 10000 bytes"):
            unconnected(60.0).read([LAGS])
    here, there = socket.socketpair()
    with there:
        monkeypatch.setattr(module, "_dial", lambda *_: here)
        with pytest.raises(EngineError, match=r"no answer within 0\.1 s"):
            unconnected(0.1).read([LAGS])


def unconnected(timeout: float) -> MBeans:
    """As after an agent was loaded into this process."""
    mbeans = MBeans.__new__(MBeans)
    mbeans.pid, mbeans._where, mbeans._timeout = os.getpid(), "here", timeout
    mbeans._requests, mbeans._body = (), b""
    mbeans._wire = module._Wire(os.getpid(), module._Agent(1, "password"), timeout)
    return mbeans


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
