"""HotSpot's attach protocol: find the JVMs of this machine, and have one carry out a command over its unix socket.

Knows processes, rights and the protocol, not what the answers mean. A JVM opens its socket when it finds a trigger file
on SIGQUIT. That signal ends any other program, so it is sent only to what surely is a HotSpot that waits for it. JVMs
in containers are reached through /proc/<pid>/root, under the process id that they have inside.
"""

from __future__ import annotations

import os
import pwd
import select
import signal
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import NamedTuple

from treadle.errors import ConfigError, EngineError, RightsError, TargetGone
from treadle.linux.peer import peer
from treadle.observe.threads import start_time

TIMEOUT = 5.0
"""Seconds. An idle JVM answers in a millisecond; one whose threads are starved may take long to stop them all."""

_PAUSE = 0.002
"""Seconds between two looks at whether the JVM has opened its socket."""
_EXITING = 0x4  # PF_EXITING of the kernel
_MOST_ARGUMENTS, _LONGEST_ARGUMENT = 3, 1024  # of protocol version 1


@dataclass(frozen=True)
class Jvm:
    """A running HotSpot JVM. `pid` and `start_time` together are never given to another process."""

    pid: int
    start_time: int
    user: str
    main: str
    """The main class, module, jar or source file; without a `java` command line, the program's name."""
    arguments: tuple[str, ...]
    """What the main class was given."""
    options: tuple[str, ...] = ()
    """What the JVM was given: all that stands before the main class."""


def find() -> list[Jvm]:
    """The JVMs that this user may attach to: their own, or all of them for root."""
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with suppress(OSError, TargetGone):
            facts = _facts(pid)
            # The cheap questions first: of hundreds of processes, few catch SIGQUIT. With -Xrs a JVM does not, and has
            # its socket from the beginning.
            may = os.geteuid() in (0, facts.uid) and (facts.catches_quit or os.path.exists(facts.socket))
            if may and _maps(pid) == (True, False):
                found.append(_describe(facts))
    return found


def look(pid: int) -> Jvm:
    """The JVM with this process id."""
    facts = _facts(pid)
    _check_rights(facts)
    _check_hotspot(facts)
    return _describe(facts)


class Answer(NamedTuple):
    """What a JVM said, and the id that it has in its own pid namespace: another one than ours in a container."""

    text: str
    inner_pid: int


def execute(pid: int, command: str, *arguments: str, timeout: float = TIMEOUT) -> str:
    """What the JVM answers to a command (`threaddump`, `properties`, `jcmd`, `load`, …)."""
    return ask(pid, command, *arguments, timeout=timeout).text


def ask(pid: int, command: str, *arguments: str, timeout: float = TIMEOUT) -> Answer:
    """As `execute`, and who it was that answered."""
    request = _request(command, arguments)
    deadline = time.monotonic() + timeout
    facts = _facts(pid)
    try:
        with closing(_connect(facts, deadline) or _wake(facts, deadline)) as connection:
            status, said = _converse(connection, request, deadline)
    except TimeoutError:
        raise _silence(facts, timeout) from None
    except ConnectionError as error:
        raise _broken(facts, error) from error
    if is_ending(pid):  # what came may be half of the answer, and nothing in it would tell
        raise TargetGone("ended in the middle of its answer", where=facts.where)
    if not status and not said:
        raise _broken(facts, None)
    if status != "0":
        why = " ".join(said.split())
        raise EngineError(f"refused {command!r}: {why}", where=facts.where)
    return Answer(said, facts.inner)


def is_ending(pid: int) -> bool:
    """Whether a process is gone, or about to be: then its sockets are closed, whatever was still to be sent."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024)
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(text[text.rindex(b")") + 2 :].split(None, 7)[6]) & _EXITING)


class _Facts(NamedTuple):
    """What /proc/<pid>/status says of a process."""

    pid: int
    inner: int
    uid: int
    gid: int
    stopped: bool
    catches_quit: bool

    @property
    def where(self) -> str:
        return f"process {self.pid}"

    @property
    def socket(self) -> str:
        return f"/proc/{self.pid}/root/tmp/.java_pid{self.inner}"

    @property
    def user(self) -> str:
        with suppress(KeyError):
            return pwd.getpwuid(self.uid).pw_name
        return str(self.uid)


def _facts(pid: int) -> _Facts:
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            text = file.read(8192)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetGone("no such process", where=f"process {pid}") from error
    line = dict(part.split(b":\t", 1) for part in text.split(b"\n") if b":\t" in part)
    if line[b"State"][:1] in b"ZX":  # nobody has asked yet how it ended
        raise TargetGone("has ended", where=f"process {pid}")
    if int(line[b"Tgid"]) != pid:
        owner = int(line[b"Tgid"])
        raise EngineError(f"this is a thread of process {owner}", where=f"process {pid}", remedy=f"use {owner}")
    return _Facts(
        pid=pid,
        inner=int(line.get(b"NSpid", b"%d" % pid).split()[-1]),
        uid=int(line[b"Uid"].split()[1]),
        gid=int(line[b"Gid"].split()[1]),
        stopped=line[b"State"][:1] in b"Tt",
        catches_quit=bool(int(line[b"SigCgt"], 16) & 1 << signal.SIGQUIT - 1),
    )


def _connect(facts: _Facts, deadline: float) -> socket.socket | None:
    """A connection to the JVM's socket; None if it has none (yet), or one that was left behind."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        while not _is_through(connection, facts):
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(_PAUSE)
        _check_peer(connection, facts)
    except (FileNotFoundError, ConnectionRefusedError, PermissionError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def _is_through(connection: socket.socket, facts: _Facts) -> bool:
    """Connect, unless others fill the JVM's queue."""
    try:
        connection.connect(facts.socket)
    except BlockingIOError:
        return False
    return True


def _check_peer(connection: socket.socket, facts: _Facts) -> None:
    """/tmp is open to everybody: whoever listens must be the JVM itself."""
    listener = peer(connection).pid
    if listener != facts.pid:
        remedy = f"find out what process {listener} is" if listener else "find out whose it is"
        raise EngineError("another process listens in its place", where=facts.where, remedy=remedy)


def _wake(facts: _Facts, deadline: float) -> socket.socket:
    """Have the JVM open its socket, and connect to it."""
    try:
        process = os.pidfd_open(facts.pid)  # from here on no other process can be meant
    except ProcessLookupError as error:
        raise TargetGone("has ended", where=facts.where) from error
    try:
        _check_rights(facts)
        _check_hotspot(facts)
        _check_willing(_facts(facts.pid))
        _make_room(facts)
        trigger = _trigger(facts)
        try:
            signal.pidfd_send_signal(process, signal.SIGQUIT)
            return _await(facts, process, deadline)
        finally:
            with suppress(OSError):
                os.unlink(trigger)
    except ProcessLookupError as error:
        raise TargetGone("has ended", where=facts.where) from error
    finally:
        os.close(process)


def _make_room(facts: _Facts) -> None:
    """Take away the socket that an ended JVM with the same id left behind.

    The JVM replaces one of its own user. In /tmp it may not touch one of another user, and would stay silent.
    """
    try:
        owner = os.lstat(facts.socket).st_uid
        if owner != facts.uid:
            os.unlink(facts.socket)
    except FileNotFoundError:
        return
    except PermissionError as error:
        path = f"/tmp/.java_pid{facts.inner}"
        why = f"its socket can't be opened: another user has left {path} behind"
        raise RightsError(why, where=facts.where, remedy=f"as root: rm {path}") from error


def _await(facts: _Facts, process: int, deadline: float) -> socket.socket:
    """A connection, as soon as there is somebody to connect to."""
    ends = select.poll()
    ends.register(process, select.POLLIN)
    while time.monotonic() < deadline:
        if ends.poll(_PAUSE * 1000):
            raise TargetGone("ended while it was attached to", where=facts.where)
        if connection := _connect(facts, deadline):
            return connection
    raise TimeoutError


def _trigger(facts: _Facts) -> str:
    """Make the file by which a JVM tells a wish to attach from a wish for a thread dump on its output."""
    problem = OSError()
    for folder in (f"/proc/{facts.pid}/root/tmp", f"/proc/{facts.pid}/cwd"):
        path = f"{folder}/.attach_pid{facts.inner}"
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)  # left behind by somebody; it may have an owner that the JVM does not believe
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError as error:
            problem = error
            continue
        with suppress(OSError):
            os.fchown(file, facts.uid, facts.gid)
        os.close(file)
        return path
    remedy = "make its /tmp writable, with room in it"
    raise EngineError(f"the trigger file can't be made: {problem.strerror}", where=facts.where, remedy=remedy)


def _converse(connection: socket.socket, request: bytes, deadline: float) -> tuple[str, str]:
    """Send a request and read the answer: its first line, which is 0 if it went well, and all that follows."""
    connection.settimeout(max(deadline - time.monotonic(), 0.001))
    connection.sendall(request)
    room, end = _BUFFERS.mine, 0
    while count := connection.recv_into(memoryview(room)[end:]):
        end += count
        if end == len(room):
            room = _BUFFERS.mine = room + bytes(len(room))
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
    line = room.find(b"\n", 0, end)
    return bytes(room[: max(line, 0)]).decode(errors="replace"), str(
        memoryview(room)[line + 1 : end], "utf-8", "replace"
    )


class _Buffers(threading.local):
    """For each thread a place for answers, which is kept: memory that is new costs more than what is written to it."""

    def __init__(self) -> None:
        self.mine = bytearray(1 << 18)


_BUFFERS = _Buffers()


def _request(command: str, arguments: tuple[str, ...]) -> bytes:
    words = [word.encode() for word in (command, *arguments, *[""] * (_MOST_ARGUMENTS - len(arguments)))]
    if len(arguments) > _MOST_ARGUMENTS or any(len(word) > _LONGEST_ARGUMENT or b"\0" in word for word in words):
        raise ConfigError(
            f"an attach command takes {_MOST_ARGUMENTS} arguments of up to {_LONGEST_ARGUMENT} bytes", where=command
        )
    return b"1\0" + b"".join(word + b"\0" for word in words)


def _check_rights(facts: _Facts) -> None:
    if os.geteuid() == 0:
        return
    if facts.uid != os.geteuid():
        remedy = f"run as {facts.user} or as root" if facts.uid else "run as root"
        raise RightsError(f"belongs to another user, {facts.user}", where=facts.where, remedy=remedy)
    if facts.gid != os.getegid():
        remedy = "run in that group, or as root"
        raise RightsError(f"has another group ({facts.gid}), and would not answer", where=facts.where, remedy=remedy)


def _check_hotspot(facts: _Facts) -> None:
    try:
        has_jvm, has_j9 = _maps(facts.pid)
    except PermissionError as error:
        raise _locked(facts) from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetGone("has ended", where=facts.where) from error
    if not has_jvm and is_ending(facts.pid):  # its memory is gone before it is
        raise TargetGone("has ended", where=facts.where)
    if not has_jvm:
        raise EngineError("is not a JVM", where=facts.where, remedy="name the process that runs Java")
    if has_j9:
        raise EngineError("is an OpenJ9 JVM", where=facts.where, remedy="run the application on a HotSpot JVM")


def _check_willing(facts: _Facts) -> None:
    """Whether the JVM would answer SIGQUIT by opening its socket: else nothing is sent, and it notices nothing."""
    if facts.stopped:
        raise EngineError("is stopped", where=facts.where, remedy=f"let it go on: kill -CONT {facts.pid}")
    given = [word for word in _given(facts.pid) if word.endswith("DisableAttachMechanism")]
    if given and given[-1] == "-XX:+DisableAttachMechanism":
        remedy = "start it without -XX:+DisableAttachMechanism"
        raise EngineError("refuses to be attached to", where=facts.where, remedy=remedy)
    if not facts.catches_quit:
        remedy = "if it has just been started, try again; else start it without -Xrs"
        raise EngineError("does not take the signal by which to attach", where=facts.where, remedy=remedy)


def _maps(pid: int) -> tuple[bool, bool]:
    """Whether a JVM's library is loaded, and whether it is OpenJ9's."""
    with open(f"/proc/{pid}/maps", "rb", buffering=0) as file:
        text = file.readall()
    return b"/libjvm.so" in text, b"/libj9vm" in text


def _given(pid: int) -> Iterable[str]:
    """All options of a JVM, in the order in which it takes them."""
    known = dict(word.partition("=")[::2] for word in _words(pid, "environ"))
    yield from known.get("JAVA_TOOL_OPTIONS", "").split()
    yield from known.get("JDK_JAVA_OPTIONS", "").split()
    yield from _words(pid, "cmdline")
    yield from known.get("_JAVA_OPTIONS", "").split()


def _words(pid: int, name: str) -> list[str]:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return os.fsdecode(file.readall()).split("\0")[:-1]


def _broken(facts: _Facts, error: ConnectionError | None) -> EngineError | TargetGone:
    """Why the JVM hung up. It does so without a word on those whom it does not trust."""
    if is_ending(facts.pid):
        return TargetGone("ended in the middle of its answer", where=facts.where)
    _check_rights(facts)
    why = f": {error.strerror}" if error else ""
    remedy = "attach from inside its container if it has users of its own, else try again"
    return EngineError(f"hung up without an answer{why}", where=facts.where, remedy=remedy)


def _silence(facts: _Facts, timeout: float) -> EngineError:
    with suppress(TargetGone):
        facts = _facts(facts.pid)
    if facts.stopped:
        return EngineError("is stopped", where=facts.where, remedy=f"let it go on: kill -CONT {facts.pid}")
    remedy = "see whether it hangs, or has no CPU to run on"
    return EngineError(f"does not answer within {timeout:g} s", where=facts.where, remedy=remedy)


def _locked(facts: _Facts) -> RightsError:
    return RightsError("may not be looked into", where=facts.where, remedy="run as root")


def _describe(facts: _Facts) -> Jvm:
    program, *words = _words(facts.pid, "cmdline") or [""]
    name = os.path.basename(program)
    at = _main_at(words) if name.startswith("java") else -1
    main, options = (words[at], words[:at]) if 0 <= at < len(words) else (name, [])
    rest = words[at + 1 :]
    began = start_time(facts.pid, facts.pid)
    return Jvm(facts.pid, began, facts.user, main, tuple(rest), tuple(options))


_WITH_VALUE = frozenset(
    {"-cp", "-classpath", "--class-path", "-p", "--module-path", "--upgrade-module-path", "--add-modules"}
    | {"--limit-modules", "--add-reads", "--add-exports", "--add-opens", "--patch-module", "--enable-native-access"}
    | {"--source"}
)
"""Options of `java` whose value is the next word."""


def _main_at(words: list[str]) -> int:
    """Where the main class stands in the arguments of `java`: the first that is neither an option nor one's value."""
    at = 0
    while at < len(words) and words[at].startswith(("-", "@")):
        at += 2 if words[at] in _WITH_VALUE else 1
    return at
