"""The MBeans of a running JVM, many in one request, through a Jolokia agent that is loaded into it once.

It knows Jolokia and HTTP, not what any MBean means. JMX can do anything in a JVM, so the agent listens on loopback,
asks for a password that only this user can read, and its policy lets nobody do more than read. It stays loaded, and a
later run finds it again.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from treadle import jars
from treadle.errors import ConfigError, EngineError, RightsError, TargetGone
from treadle.jvm import loading
from treadle.jvm.attach import execute, look
from treadle.jvm.process import is_ending
from treadle.linux.files import bounded, trusted
from treadle.linux.thread_times import start_time
from treadle.text import excerpt

Beans = dict[str, dict[str, Any]]
"""By MBean name, the attributes and their values."""

TIMEOUT = 5.0
"""Seconds for one read; an idle JVM needs about a millisecond."""
START = 30.0
"""Seconds until an agent answers; it loads some hundred classes, which on a busy machine takes a while."""

LONGEST, LONGEST_HEAD = 1 << 23, 1 << 16
"""Bytes of an answer, and of what stands before it."""
_USER = "treadle"
_POLICY = b"<restrict><commands><command>read</command><command>version</command></commands></restrict>"
_CLONE_NEWNET = 0x40000000


class MBeans:
    """Reads MBeans of one JVM over one kept connection.

    Making it loads the agent, unless an earlier run has; or, if it must not `load` any, is an error then.
    """

    def __init__(self, pid: int, *, timeout: float = TIMEOUT, load: bool = True) -> None:
        self.pid = pid
        self._where = f"process {pid}, MBeans"
        self._timeout = timeout
        self._requests: Sequence[tuple[str, Sequence[str]]] = ()
        self._body = b""
        began = look(pid).start_time
        agent = _remembered(pid, began)
        if agent is not None:
            self._wire = _Wire(pid, agent, timeout)
            if self._answers():
                return
            self._wire.close()
        if not load:
            raise NoAgentError("no agent is loaded", where=self._where, remedy="let one be loaded")
        agent = _load(pid)
        _remember(pid, began, agent)
        self._wire = _Wire(pid, agent, timeout)

    def read(self, requests: Sequence[tuple[str, Sequence[str]]]) -> list[Beans]:
        """For each (name or pattern, attributes) the MBeans that there are, with those attributes that could be read.

        No attributes means all of them. A pattern gives names as they were registered; NaN comes as None.
        """
        if requests != self._requests:
            self._body = json.dumps([_wish(*request) for request in requests]).encode()
            self._requests = tuple(requests)
        if not requests:
            return []
        status, answer = self._post(self._body)
        if status != 200:
            raise self._problem(status, answer)
        try:
            return parse([name for name, _ in requests], answer)
        except EngineError as error:
            raise EngineError(error.message, where=self._where, remedy="attach again") from error

    def close(self) -> None:
        """Close the connection; the agent stays for the next run."""
        self._wire.close()

    def _answers(self) -> bool:
        try:
            return self._wire.post(b'{"type":"version"}')[0] == 200
        except (OSError, EngineError):
            return False

    def _post(self, body: bytes) -> tuple[int, bytes]:
        try:
            return self._wire.post(body)
        except (TimeoutError, bounded.TimeOverError) as error:
            remedy = "see whether it hangs, or has no CPU to run on"
            raise EngineError(f"no answer within {self._timeout:g} s", where=self._where, remedy=remedy) from error
        except EngineError as error:
            raise EngineError(error.message, where=self._where, remedy="attach again") from error
        except OSError as error:
            if is_ending(self.pid):
                raise TargetGone("the process has ended", where=self._where) from error
            raise EngineError(f"the agent is gone: {error}", where=self._where, remedy="attach again") from error

    def _problem(self, status: int, answer: bytes) -> ConfigError | EngineError:
        said = excerpt(answer.decode(errors="replace"))
        if status == 400:
            return ConfigError(f"not a name of an MBean: {said}", where=self._where, remedy="domain:key=value,…")
        return EngineError(f"the agent says {status} {said}", where=self._where, remedy="attach again")


class NoAgentError(EngineError):
    """None is there, and none may be loaded."""


class _Agent(NamedTuple):
    port: int
    password: str


class _Wire:
    """HTTP over one connection, as far as Jolokia needs it."""

    def __init__(self, pid: int, agent: _Agent, timeout: float) -> None:
        self.agent = agent
        self._pid = pid
        self._timeout = timeout
        self._socket: socket.socket | None = None
        secret = base64.b64encode(f"{_USER}:{agent.password}".encode())
        self._head = (
            b"POST /jolokia/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Basic " + secret + b"\r\nContent-Length: %d\r\n\r\n"
        )

    def post(self, body: bytes) -> tuple[int, bytes]:
        """Status and contents of the answer. A connection that the agent has closed for being idle is made anew."""
        if self._socket is not None:
            with suppress(ConnectionError):
                return self._ask(body)
        return self._ask(body)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, body: bytes) -> tuple[int, bytes]:
        try:
            if self._socket is None:
                self._socket = _dial(self._pid, self.agent.port, self._timeout)
            self._socket.settimeout(self._timeout)
            self._socket.sendall(self._head % len(body) + body)
            return AnswerReader(self._socket, self._timeout).read()
        except BaseException:
            self.close()  # else the next answer would be that to this request
            raise


class AnswerReader:
    """Reads one answer over HTTP from a connection that is kept, within the time and the bytes that it may have."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._came = 0
        self._rest = bytearray()

    def read(self) -> tuple[int, bytes]:
        """Status and contents."""
        head = self._until(b"\r\n\r\n", LONGEST_HEAD).lower()
        status = re.match(rb"http/1\.[01] ([0-9]{3})\b", head)
        if status is None:
            raise EngineError("does not answer in HTTP")
        if b"transfer-encoding: chunked" in head:
            return int(status[1]), b"".join(self._chunks())
        length = re.search(rb"\ncontent-length: *([0-9]{1,9})\b", head)
        return int(status[1]), self._exactly(int(length[1]) if length else 0)

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = self._until(b"\r\n", LONGEST_HEAD)
            size = re.match(rb"([0-9a-f]{1,7})\b", line.lower())
            if size is None:
                raise EngineError("sends a chunk without its size")
            chunk = self._exactly(int(size[1], 16))
            self._exactly(2)
            if not chunk:
                return
            yield chunk

    def _until(self, mark: bytes, most: int) -> bytes:
        """What comes before a mark."""
        searched = 0
        while (at := self._rest.find(mark, searched)) < 0:
            searched = max(0, len(self._rest) - len(mark) + 1)
            if searched > most:
                raise bounded.too_long(most)
            self._more()
        found = bytes(self._rest[:at])
        del self._rest[: at + len(mark)]
        return found

    def _exactly(self, count: int) -> bytes:
        if count > LONGEST:
            raise bounded.too_long(LONGEST)
        while len(self._rest) < count:
            self._more()
        found = bytes(self._rest[:count])
        del self._rest[:count]
        return found

    def _more(self) -> None:
        with suppress(OSError):
            # The server sends head and body apart, and the body only after our ACK, which by default comes 40 ms later.
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        some = bounded.piece(self._connection, self._end, self._seconds)
        if not some:
            raise ConnectionResetError("it closed the connection")
        self._came += len(some)
        if self._came > 2 * LONGEST:
            raise bounded.too_long(2 * LONGEST)
        self._rest += some


def _wish(name: str, attributes: Sequence[str]) -> Mapping[str, Any]:
    wish: dict[str, Any] = {"type": "read", "mbean": name, "config": {"ignoreErrors": True, "includeRequest": False}}
    return {**wish, "attribute": list(attributes)} if attributes else wish


def parse(names: Sequence[str], answer: bytes) -> list[Beans]:
    """For each name or pattern that was asked for, the MBeans in an answer."""
    replies = bounded.decoded(answer)
    try:
        return [_beans(name, reply) for name, reply in zip(names, replies, strict=True)]
    except (AttributeError, TypeError, ValueError) as error:
        raise EngineError("the agent's answer can't be understood") from error


def _beans(name: str, reply: Mapping[str, Any]) -> Beans:
    """What could be read. What could not has an error in its place, which is left out."""
    value = reply.get("value") or {}
    is_pattern = re.search(r"(?<!\\)[*?]", name)
    found = {
        bean: {key: worth for key, worth in read.items() if not (type(worth) is dict and worth.get(".error"))}
        for bean, read in (value if is_pattern else {name: value}).items()
    }
    return {bean: read for bean, read in found.items() if read}


def _dial(pid: int, port: int, timeout: float) -> socket.socket:
    """A connection to a loopback port of the JVM, which in a container is another loopback than ours."""
    network = f"/proc/{pid}/ns/net"

    def inside() -> socket.socket:
        space = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(space, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "its network can't be entered")
        finally:
            os.close(space)
        return _connected(port, timeout)

    with suppress(PermissionError):
        if os.readlink(network) != os.readlink("/proc/self/ns/net"):
            with ThreadPoolExecutor(1) as apart:  # a thread that ends with it: only a thread moves, not the process
                return apart.submit(inside).result()
    return _connected(port, timeout)


def _connected(port: int, timeout: float) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _load(pid: int) -> _Agent:
    """Load an agent, beside others that may be there, and wait until it has said where it listens."""
    where = f"process {pid}, MBeans"
    password = secrets.token_urlsafe(24)
    before = _announced(pid)
    deadline = time.monotonic() + START
    with loading.file(pid, _POLICY, ".xml") as policy:
        options = f"host=127.0.0.1,port=0,discoveryEnabled=false,user={_USER},password={password}"
        options += f",policyLocation=file://{policy}"
        loading.load(pid, _jar(), options, timeout=START)
        while (port := _announced(pid)) in (before, None):
            if time.monotonic() > deadline:
                remedy = "the standard error of that JVM says why"
                raise EngineError(f"the agent is not up after {START:g} s", where=where, remedy=remedy)
            time.sleep(0.01)
    assert port is not None
    return _Agent(port, password)


def _jar() -> jars.Jar:
    (jar,) = jars.fetched("jolokia")
    return jar


def _announced(pid: int) -> int | None:
    """The port of the agent that was loaded last."""
    said = execute(pid, "properties", timeout=START)
    port = re.search(r"^jolokia\.agent=http[^\s/]{0,9}//[^\s/]{1,300}?([0-9]{1,5})/", said, re.MULTILINE)
    return int(port[1]) if port else None


def _record(pid: int, began: int) -> Path:
    return jars.home() / "agents" / f"{pid}-{began}.json"


def _remembered(pid: int, began: int) -> _Agent | None:
    """The agent that an earlier run has loaded into this JVM, if its password was kept, and kept secret."""
    path = _record(pid, began)
    with suppress(OSError, RightsError, ValueError, TypeError):
        if not path.lstat().st_mode & 0o077:
            return _Agent(**json.loads(trusted.read(path)))
    return None


def _remember(pid: int, began: int, agent: _Agent) -> None:
    """Keep it where only this user can read it. If it can't be kept, a later run loads another agent."""
    path = _record(pid, began)
    with suppress(OSError, RightsError):
        trusted.make_folder(path.parent, mode=0o700)
        _forget(path.parent.glob("*-*.json"))
        file, name = tempfile.mkstemp(dir=path.parent)  # made with mode 0600
        with open(file, "w") as stream:
            json.dump(agent._asdict(), stream)
        os.rename(name, path)


def _forget(records: Iterable[Path]) -> None:
    """Remove the records of JVMs that have ended."""
    for path in records:
        pid, _, began = path.stem.partition("-")
        try:
            is_alive = start_time(int(pid), int(pid)) == int(began)
        except (TargetGone, ValueError):
            is_alive = False
        if not is_alive:
            path.unlink(missing_ok=True)
