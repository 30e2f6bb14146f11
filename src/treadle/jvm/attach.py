"""HotSpot's attach protocol: find the JVMs of this machine, and have a JVM run a command over its unix socket.

It knows processes, rights and the protocol, not the meaning of answers. A JVM opens its socket when it gets SIGQUIT and
finds a trigger file. SIGQUIT ends any other program, so it is sent only to a process that surely is a HotSpot JVM with
a handler for it. The socket of a JVM in a container is in the container's /tmp, with the JVM's id in that container.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from treadle.errors import ConfigError, EngineError, RightsError, TargetGone, TreadleError
from treadle.jvm import checks
from treadle.jvm.process import Facts, facts_of, is_ending, libraries, words_of
from treadle.linux.files.bounded import TimeOverError, TooLongError, receive
from treadle.linux.files.target_files import TargetFolder, temporary_folder, working_folder
from treadle.linux.sockets import peer
from treadle.linux.thread_times import start_time
from treadle.text import excerpt

TIMEOUT = 5.0
"""Seconds to wait for an answer. An idle JVM needs a millisecond, but much longer if its threads get no CPU."""

_PAUSE = 0.002
"""Seconds between two checks whether the JVM has opened its socket."""
_LONGEST_ANSWER = 1 << 25
"""Most bytes of an answer. A thread dump has some kilobytes per thread, and there may be thousands of threads."""
_ANSWER_DUE = 30.0
"""Up to this age in seconds, a trigger file means that the JVM got SIGQUIT and has not handled it yet."""
_WAKING: dict[int, threading.Lock] = {}
"""Process id -> the lock held by the thread that wakes this JVM, which means that it sends SIGQUIT."""
_UNANSWERED: set[int] = set()
"""Ids of JVMs that had not handled SIGQUIT when we gave up; their trigger files still exist."""
_FEWEST_THREADS = 4
"""A process with fewer threads than this is no JVM: a JVM has more from its start."""
_MOST_ARGUMENTS, _LONGEST_ARGUMENT = 3, 1024  # of protocol version 1


@dataclass(frozen=True)
class Jvm:
    """A running HotSpot JVM. `pid` and `start_time` together identify it; no later process has both."""

    pid: int
    start_time: int
    user: str
    main: str
    """The main class, module, jar or source file; without a `java` command line, the program's name."""
    arguments: tuple[str, ...]
    """The arguments of the main class."""
    options: tuple[str, ...] = ()
    """The options of the JVM: all words before the main class."""


def find() -> list[Jvm]:
    """The JVMs that this user may attach to: the user's own, or all for root."""
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with suppress(OSError, TreadleError):
            facts = facts_of(pid)
            # The cheap checks first: of hundreds of processes, few catch SIGQUIT. A JVM with -Xrs does not catch it,
            # but has its socket from the start.
            may = os.geteuid() in (0, facts.uid) and (facts.catches_quit or _has_socket(facts))
            if may and libraries(pid) == (True, False):
                found.append(_describe(facts))
    return found


def look(pid: int) -> Jvm:
    """The JVM with this process id."""
    facts = facts_of(pid)
    checks.check_rights(facts)
    checks.check_hotspot(facts)
    return _describe(facts)


class Answer(NamedTuple):
    """The answer of a JVM, and the JVM's id in its own pid namespace, which in a container differs from ours."""

    text: str
    inner_pid: int


def execute(pid: int, command: str, *arguments: str, timeout: float = TIMEOUT) -> str:
    """Run a command in the JVM (`threaddump`, `properties`, `jcmd`, `load`, …) and return the answer."""
    return ask(pid, command, *arguments, timeout=timeout).text


def ask(pid: int, command: str, *arguments: str, timeout: float = TIMEOUT) -> Answer:
    """As `execute`; also returns the JVM's id in its own pid namespace."""
    request = _request(command, arguments)
    deadline = time.monotonic() + timeout
    facts = facts_of(pid)
    checks.check_rights(facts)
    try:
        with (
            _temporary_folder(facts) as folder,
            closing(_reach(folder, facts, deadline)) as connection,
        ):
            status, said = _converse(connection, request, deadline)
    except (TimeoutError, TimeOverError):
        raise _silence(facts, timeout) from None
    except TooLongError as error:
        raise EngineError(error.message, where=facts.where, remedy=error.remedy) from error
    except ConnectionError as error:
        raise _broken(facts, error) from error
    if is_ending(pid):  # the answer may be incomplete
        raise TargetGone("ended in the middle of its answer", where=facts.where)
    if not status and not said:
        raise _broken(facts, None)
    if status != "0":
        raise EngineError(f"refused {command!r}: {excerpt(said)}", where=facts.where)
    return Answer(said, facts.inner)


@contextmanager
def _temporary_folder(facts: Facts) -> Iterator[TargetFolder]:
    """The JVM's /tmp; the error says why it can't be opened."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_folder(facts.pid))
        except OSError as error:
            checks.check_hotspot(facts)
            remedy = "check that it is a folder that the process can write to"
            raise EngineError(
                f"its /tmp can't be opened: {error.strerror}", where=facts.where, remedy=remedy
            ) from error
        yield folder


def _has_socket(facts: Facts) -> bool:
    if facts.threads < _FEWEST_THREADS:
        return False
    with temporary_folder(facts.pid) as folder:
        return folder.uid(facts.socket) == facts.uid


def _reach(folder: TargetFolder, facts: Facts, deadline: float) -> socket.socket:
    """Connect to the JVM, and have it open its socket first if it has none."""
    connection = _connect(folder, facts, deadline) or _wake(folder, facts, deadline)
    if facts.pid in _UNANSWERED:  # it has handled its signal, so the trigger file is obsolete
        _UNANSWERED.discard(facts.pid)
        with suppress(OSError, TreadleError), working_folder(facts.pid) as working:  # it is here or in /tmp
            working.remove(facts.trigger)
        with suppress(OSError):
            folder.remove(facts.trigger)
    return connection


def _connect(folder: TargetFolder, facts: Facts, deadline: float) -> socket.socket | None:
    """Connect to the JVM's socket; None if it has none (yet), or only one of an ended process."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        while not _is_through(connection, folder, facts):
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


def _is_through(connection: socket.socket, folder: TargetFolder, facts: Facts) -> bool:
    """Connect; False if the backlog of the JVM's socket is full."""
    try:
        folder.connect(connection, facts.socket)
    except BlockingIOError:
        return False
    return True


def _check_peer(connection: socket.socket, facts: Facts) -> None:
    """Check that the JVM itself listens, since every user can make sockets in /tmp."""
    listener = peer(connection).pid
    if listener != facts.pid:
        remedy = f"find out what process {listener} is" if listener else "find out which process that is"
        raise EngineError("another process listens on its attach socket", where=facts.where, remedy=remedy)


def _wake(folder: TargetFolder, facts: Facts, deadline: float) -> socket.socket:
    """Have the JVM open its socket by SIGQUIT, and connect to it.

    If its socket is already open or there is no trigger file, a JVM that gets SIGQUIT prints all stacks on its standard
    output instead. If that is a pipe without a reader, all threads of the JVM then hang. So the JVM gets the signal
    only once, and the trigger file stays until the JVM has handled the signal, even if we have given up by then.
    """
    try:
        process = os.pidfd_open(facts.pid)  # refers to this process only, also if its id is used again
    except ProcessLookupError as error:
        raise TargetGone("has ended", where=facts.where) from error
    try:
        with _alone(facts.pid, deadline):
            if connection := _connect(folder, facts, deadline):  # another thread has woken it meanwhile
                return connection
            checks.check_hotspot(facts)
            checks.check_willing(facts_of(facts.pid))
            if _is_woken(folder, facts):
                return _await(folder, facts, process, deadline)
            _make_room(folder, facts)
            with _trigger(folder, facts):
                signal.pidfd_send_signal(process, signal.SIGQUIT)
                return _await(folder, facts, process, deadline)
    except ProcessLookupError as error:
        raise TargetGone("has ended", where=facts.where) from error
    finally:
        os.close(process)


@contextmanager
def _alone(pid: int, deadline: float) -> Iterator[None]:
    """Hold the lock with which only one thread of this process at a time wakes the JVM."""
    lock = _WAKING.setdefault(pid, threading.Lock())
    if not lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
        raise TimeoutError
    try:
        yield
    finally:
        lock.release()


def _is_woken(folder: TargetFolder, facts: Facts) -> bool:
    """Whether the JVM recently got SIGQUIT from a process that attaches, and has not handled it yet."""
    with suppress(OSError):
        about = folder.about(facts.trigger)
        return about.st_uid == facts.uid and abs(time.time() - about.st_mtime) < _ANSWER_DUE
    return False


def _make_room(folder: TargetFolder, facts: Facts) -> None:
    """Remove the socket that an ended JVM with the same id left behind, if it belongs to another user.

    The JVM can replace a socket of its own user. It can't replace one of another user, and would not answer.
    """
    try:
        if folder.uid(facts.socket) != facts.uid:
            folder.remove(facts.socket, with_force=_has_our_id(facts))
    except FileNotFoundError:
        return
    except PermissionError as error:
        path = f"/tmp/{facts.socket}"
        why = f"its attach socket can't be opened: another user has left {path} behind"
        raise RightsError(why, where=facts.where, remedy=f"as root: rm {path}") from error


def _has_our_id(facts: Facts) -> bool:
    """Whether the JVM's id in its own pid namespace is the same as in ours, so no other process uses its file names."""
    return facts.inner == facts.pid


def _await(folder: TargetFolder, facts: Facts, process: int, deadline: float) -> socket.socket:
    """Wait until the JVM has opened its socket, and connect."""
    ends = select.poll()
    ends.register(process, select.POLLIN)
    while time.monotonic() < deadline:
        if ends.poll(_PAUSE * 1000):
            raise TargetGone("ended during the attach", where=facts.where)
        if connection := _connect(folder, facts, deadline):
            return connection
    raise TimeoutError


@contextmanager
def _trigger(temporary: TargetFolder, facts: Facts) -> Iterator[None]:
    """Make the trigger file in the JVM's /tmp or, if that fails, in its working folder.

    The file is removed at the end, unless the JVM has not answered in time: it may still handle its signal.
    """
    with ExitStack() as stack:
        try:
            folder = temporary
            _make_trigger(folder, facts)
        except OSError as problem:
            try:
                folder = stack.enter_context(working_folder(facts.pid))
                _make_trigger(folder, facts)
            except (OSError, TreadleError):
                remedy = "make its /tmp writable, with room in it"
                why = f"the trigger file can't be made: {problem.strerror}"
                raise EngineError(why, where=facts.where, remedy=remedy) from problem
        _UNANSWERED.discard(facts.pid)
        try:
            yield
        except TimeoutError:
            _UNANSWERED.add(facts.pid)
            raise
        finally:
            if facts.pid not in _UNANSWERED:
                with suppress(OSError):
                    folder.remove(facts.trigger)


def _make_trigger(folder: TargetFolder, facts: Facts) -> None:
    """Replace the trigger file, since the JVM ignores an old file of another user."""
    folder.remove(facts.trigger, with_force=_has_our_id(facts))
    folder.make(facts.trigger)


def _converse(connection: socket.socket, request: bytes, deadline: float) -> tuple[str, str]:
    """Send a request and return the answer: its first line, which is 0 on success, and the rest."""
    connection.settimeout(max(deadline - time.monotonic(), 0.001))
    connection.sendall(request)
    answer = receive(connection, _LONGEST_ANSWER, deadline - time.monotonic())
    line = answer.find(b"\n")
    return answer[: max(line, 0)].decode(errors="replace"), str(memoryview(answer)[line + 1 :], "utf-8", "replace")


def _request(command: str, arguments: tuple[str, ...]) -> bytes:
    words = [word.encode() for word in (command, *arguments, *[""] * (_MOST_ARGUMENTS - len(arguments)))]
    if len(arguments) > _MOST_ARGUMENTS or any(len(word) > _LONGEST_ARGUMENT or b"\0" in word for word in words):
        raise ConfigError(
            f"an attach command takes {_MOST_ARGUMENTS} arguments of up to {_LONGEST_ARGUMENT} bytes", where=command
        )
    return b"1\0" + b"".join(word + b"\0" for word in words)


def _broken(facts: Facts, error: ConnectionError | None) -> EngineError | TargetGone:
    """The error for a JVM that closed the connection. JVMs do this to users that they do not trust."""
    if is_ending(facts.pid):
        return TargetGone("ended in the middle of its answer", where=facts.where)
    why = f": {error.strerror}" if error else ""
    remedy = f"try again; if that does not help, run as {facts.user}"
    return EngineError(f"disconnected without an answer{why}", where=facts.where, remedy=remedy)


def _silence(facts: Facts, timeout: float) -> EngineError:
    with suppress(TargetGone):
        facts = facts_of(facts.pid)
    if facts.stopped:
        return EngineError("is stopped", where=facts.where, remedy=f"let it go on: kill -CONT {facts.pid}")
    remedy = "see whether it hangs, or has no CPU to run on"
    return EngineError(f"does not answer within {timeout:g} s", where=facts.where, remedy=remedy)


def _describe(facts: Facts) -> Jvm:
    program, *words = words_of(facts.pid, "cmdline") or [""]
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
"""Options of `java` that have their value in the next word."""


def _main_at(words: list[str]) -> int:
    """The index of the main class in the arguments of `java`: the first that is no option and no option's value."""
    at = 0
    while at < len(words) and words[at].startswith(("-", "@")):
        at += 2 if words[at] in _WITH_VALUE else 1
    return at
