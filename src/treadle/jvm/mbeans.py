"""The MBeans of a running JVM, many in one request, through a Jolokia agent that is loaded into the JVM once.

It knows Jolokia and HTTP, not the meaning of any MBean. JMX can do anything in a JVM, so the agent listens on loopback
only, requires a password that only this user can read, and has a policy that allows only reads. The agent stays loaded,
and a later run uses it again.
"""

from __future__ import annotations

import base64
import ctypes
import json
import math
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
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
"""MBean name -> attribute -> value."""

TIMEOUT = 5.0
"""Seconds for one read; an idle JVM needs about a millisecond."""
START = 30.0
"""Seconds until an agent answers; it loads some hundred classes, which is slow on a busy machine."""

LONGEST = 1 << 23
"""The most bytes of an answer."""
_USER = "treadle"
_POLICY = b"<restrict><commands><command>read</command><command>version</command></commands></restrict>"
_CLONE_NEWNET = 0x40000000


class MBeans:
    """Reads MBeans of one JVM over one connection that is kept open.

    The constructor loads the agent, unless an earlier run has done so. With `load=False`, a missing agent is an error.
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
            raise NoAgentError("no Jolokia agent is loaded", where=self._where, remedy="add --agent (agent=True)")
        agent = _load(pid)
        _remember(pid, began, agent)
        self._wire = _Wire(pid, agent, timeout)

    def read(self, requests: Sequence[tuple[str, Sequence[str]]]) -> list[Beans]:
        """For each request, the MBeans that exist, with the attributes that could be read.

        A request is a name or pattern and a list of attributes; an empty list means all of them. The MBeans that match
        a pattern have the names under which they were registered. A value of NaN becomes None.
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
        except TimeoutError as error:
            remedy = "see whether it hangs, or has no CPU to run on"
            raise EngineError(f"no answer within {self._timeout:g} s", where=self._where, remedy=remedy) from error
        except EngineError as error:
            raise EngineError(error.message, where=self._where, remedy="attach again") from error
        except OSError as error:
            if is_ending(self.pid):
                raise TargetGone("the process has ended", where=self._where) from error
            raise EngineError(
                f"the agent has disconnected: {error}", where=self._where, remedy="attach again"
            ) from error

    def _problem(self, status: int, answer: bytes) -> ConfigError | EngineError:
        said = excerpt(answer.decode(errors="replace"))
        if status == 400:
            return ConfigError(
                f"not the name of an MBean: {said}", where=self._where, remedy="write domain:key=value,…"
            )
        return EngineError(f"the agent says {status} {said}", where=self._where, remedy="attach again")


class NoAgentError(EngineError):
    """No agent is loaded, and none may be loaded."""


class _Agent(NamedTuple):
    port: int
    password: str


class _Wire:
    """One kept HTTP connection to an agent."""

    def __init__(self, pid: int, agent: _Agent, timeout: float) -> None:
        self.agent = agent
        secret = base64.b64encode(f"{_USER}:{agent.password}".encode()).decode()
        self._headers = {"Content-Type": "application/json", "Authorization": f"Basic {secret}"}
        self._connection = _Connection(pid, agent.port, timeout)

    def post(self, body: bytes) -> tuple[int, bytes]:
        """Return HTTP status and contents of the answer. Connect again if the agent has closed an idle connection."""
        if self._connection.sock is not None:
            with suppress(ConnectionError):
                return self._ask(body)
        return self._ask(body)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, body: bytes) -> tuple[int, bytes]:
        try:
            self._connection.request("POST", "/jolokia/", body, self._headers)
            answer = self._connection.getresponse()
            contents = answer.read(LONGEST + 1)
            if len(contents) > LONGEST:
                raise bounded.too_long(LONGEST)
        except BaseException as error:
            self.close()  # else the next request would get the answer to this one
            if isinstance(error, HTTPException | ValueError) and not isinstance(error, OSError):
                raise EngineError("does not answer in HTTP") from error
            raise
        return answer.status, contents


class _Connection(HTTPConnection):
    """A connection made in the network namespace of the JVM, with a time limit on each request and its answer."""

    sock: _Socket | None

    def __init__(self, pid: int, port: int, timeout: float) -> None:
        super().__init__("localhost", port)
        self._pid = pid
        self._seconds = timeout

    def connect(self) -> None:
        dialled = _dial(self._pid, self.port, self._seconds)
        self.sock = _Socket(fileno=dialled.detach())

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is None:
            self.connect()
        assert self.sock is not None
        self.sock.end = time.monotonic() + self._seconds
        self.sock.settimeout(self._seconds)
        super().request(*args, **kwargs)


class _Socket(socket.socket):
    """A socket with a time limit on a whole answer. It sends TCP acknowledgements without delay."""

    end = math.inf
    """Time on the monotonic clock at which the answer must be complete."""

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        with suppress(OSError):
            # The server sends the body only after our ACK of the head, and Linux by default delays that by 40 ms.
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        left = self.end - time.monotonic()
        if left <= 0.0:
            raise TimeoutError
        self.settimeout(left)
        return super().recv_into(*args, **kwargs)


def _wish(name: str, attributes: Sequence[str]) -> Mapping[str, Any]:
    wish: dict[str, Any] = {"type": "read", "mbean": name, "config": {"ignoreErrors": True, "includeRequest": False}}
    return {**wish, "attribute": list(attributes)} if attributes else wish


def parse(names: Sequence[str], answer: bytes) -> list[Beans]:
    """The MBeans in an answer, for each requested name or pattern."""
    replies = bounded.decoded(answer)
    try:
        return [_beans(name, reply) for name, reply in zip(names, replies, strict=True)]
    except (AttributeError, TypeError, ValueError) as error:
        raise EngineError("the agent's answer can't be parsed") from error


def _beans(name: str, reply: Mapping[str, Any]) -> Beans:
    """The MBeans in a reply, without attributes that could not be read: these have an error instead of a value."""
    value = reply.get("value") or {}
    is_pattern = re.search(r"(?<!\\)[*?]", name)
    found = {
        bean: {key: worth for key, worth in read.items() if not (type(worth) is dict and worth.get(".error"))}
        for bean, read in (value if is_pattern else {name: value}).items()
    }
    return {bean: read for bean, read in found.items() if read}


def _dial(pid: int, port: int, timeout: float) -> socket.socket:
    """Connect to a loopback port of the JVM; in a container, in the network namespace of the JVM."""
    network = f"/proc/{pid}/ns/net"

    def inside() -> socket.socket:
        space = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(space, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "its network namespace can't be entered")
        finally:
            os.close(space)
        return _connected(port, timeout)

    with suppress(PermissionError):
        if os.readlink(network) != os.readlink("/proc/self/ns/net"):
            with ThreadPoolExecutor(1) as apart:  # setns moves only the calling thread, so use a new one
                return apart.submit(inside).result()
    return _connected(port, timeout)


def _connected(port: int, timeout: float) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _load(pid: int) -> _Agent:
    """Load an agent, also beside other Jolokia agents, and wait until it has published its port."""
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
                raise EngineError(f"the agent has not started within {START:g} s", where=where, remedy=remedy)
            time.sleep(0.01)
    assert port is not None
    return _Agent(port, password)


def _jar() -> jars.Jar:
    (jar,) = jars.fetched("jolokia")
    return jar


def _announced(pid: int) -> int | None:
    """The port of the agent that was loaded last, from the JVM's system properties; None without an agent."""
    said = execute(pid, "properties", timeout=START)
    port = re.search(r"^jolokia\.agent=http[^\s/]{0,9}//[^\s/]{1,300}?([0-9]{1,5})/", said, re.MULTILINE)
    return int(port[1]) if port else None


def _record(pid: int, began: int) -> Path:
    return jars.home() / "agents" / f"{pid}-{began}.json"


def _remembered(pid: int, began: int) -> _Agent | None:
    """The agent that an earlier run has loaded into this JVM, if its stored password is readable only by this user."""
    path = _record(pid, began)
    with suppress(OSError, RightsError, ValueError, TypeError):
        if not path.lstat().st_mode & 0o077:
            return _Agent(**json.loads(trusted.read(path)))
    return None


def _remember(pid: int, began: int, agent: _Agent) -> None:
    """Store port and password, readable only by this user. If that fails, a later run loads another agent."""
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
