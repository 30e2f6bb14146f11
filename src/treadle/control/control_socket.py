"""The control socket of a running pipeline: a unix socket with one JSON object per line for each request and answer.

It carries commands and their results or errors between two processes of one user; handlers carry out the commands. A
request is `{"command": "policy", "arguments": {"name": "fcfs"}}`, an answer
`{"result": …}` or `{"error": {"kind": "ConfigError", "message": "…", "where": "…", "remedy": "…"}}`.
"""

from __future__ import annotations

import errno
import inspect
import logging
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

from treadle.control.lines import Lines, as_json, line_of, parse, result, too_long
from treadle.errors import ConfigError, EngineError, RightsError, TreadleError
from treadle.linux import users
from treadle.linux.files import runtime_folder
from treadle.linux.files.file_lock import alone
from treadle.linux.sockets import peer, waiting_connect
from treadle.plugins import suggestion

LARGEST_REQUEST = 64 * 1024
LARGEST_ANSWER = 64 * 1024 * 1024
LONGEST_PATH = 107  # bytes of sun_path, without the closing zero
MOST_CLIENTS = 32
LONGEST_WAIT = 1.0
"""Seconds that a new client waits for the end of another one, if there are `MOST_CLIENTS`."""
_PREFIX = "treadle-"
_CALLER = ContextVar("caller", default="this process")

_log = logging.getLogger("treadle.control")


class Server:
    """Answers commands at `path` until it is closed.

    Each client has a thread, so several handlers may run at once. A handler gets the request's arguments by name and
    returns a JSON value; its TreadleError is raised again in the client. A client may take `patience` seconds to send a
    request or to receive an answer.
    """

    def __init__(self, path: Path, handlers: Mapping[str, Callable[..., object]], *, patience: float = 10.0) -> None:
        self.path = path
        self._handlers = dict(handlers)
        self._patience = patience
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        """Notified when a client has ended."""
        self._clients: dict[threading.Thread, socket.socket] = {}
        self._closed = False
        self._listener = _listen(path)
        self._inode = path.stat().st_ino
        self._thread = threading.Thread(target=self._accept, name=f"treadle-ctl-{path.stem}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Accept no more requests, wait up to `patience` seconds for those in progress, and remove the socket.

        A handler may call this; its own answer is still sent.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with suppress(OSError):  # the socket or its folder may be removed already
                if self.path.stat().st_ino == self._inode:
                    self.path.unlink()
            clients = dict(self._clients)
            for connection in clients.values():
                _shut(connection, socket.SHUT_RD)  # idle clients end, busy ones still get their answer
        _shut(self._listener, socket.SHUT_RDWR)  # wakes the thread that waits in accept()
        deadline = time.monotonic() + self._patience
        for thread in (self._thread, *clients):
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closed:
                    _log.warning("the control socket can't take a client: %s", error)
                    time.sleep(0.1)  # out of file descriptors: wait until some are closed
                continue
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        thread = threading.Thread(target=self._serve, args=(connection,), name="treadle-ctl-client", daemon=True)
        with self._lock:
            self._ended.wait_for(lambda: self._closed or len(self._clients) < MOST_CLIENTS, LONGEST_WAIT)
            if not self._closed and len(self._clients) < MOST_CLIENTS:
                with suppress(RuntimeError):  # the system can't start one more thread
                    thread.start()
                    self._clients[thread] = connection
                    return
        with connection, suppress(OSError):
            busy = EngineError("the pipeline has too many clients", where=str(self.path), remedy="try again")
            connection.settimeout(0)
            connection.sendall(line_of({"error": as_json(busy)}))

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                if not _is_trusted(connection):
                    return
                asker = peer(connection)
                _CALLER.set(f"process {asker.pid} of {users.name(asker.uid)}")
                lines = Lines(connection, LARGEST_REQUEST)
                while (line := lines.next(self._patience)) is not None:
                    answer = self._answer(line)
                    connection.settimeout(self._patience)
                    connection.sendall(answer)
        except OSError as error:  # also a client that is too slow or has disconnected
            _log.debug("a client of the control socket was lost: %s", error)
        finally:
            with self._lock:
                self._clients.pop(threading.current_thread(), None)
                self._ended.notify_all()

    def _answer(self, line: bytes) -> bytes:
        try:
            try:
                return line_of({"result": self._call(line)})
            except TreadleError:
                raise
            except Exception as error:
                _log.exception("a command on the control socket failed")
                problem = f"{type(error).__name__}: {error}"
                raise EngineError(f"the command failed: {problem}", remedy="see the pipeline's log") from error
        except TreadleError as error:
            return line_of({"error": as_json(error)})

    def _call(self, line: bytes) -> object:
        command, arguments = parse(line)
        if command not in self._handlers:
            known = sorted(self._handlers)
            raise ConfigError(f"there is no command '{command}'", remedy=suggestion(command, known))
        handler = self._handlers[command]
        try:
            inspect.signature(handler).bind(**arguments)
        except TypeError as error:
            takes = ", ".join(inspect.signature(handler).parameters) or "nothing"
            raise ConfigError(f"{command}: {error}", remedy=f"it takes {takes}") from error
        return handler(**arguments)


def caller() -> str:
    """Return the process and user whose command this thread handles, or "this process" outside of a handler."""
    return _CALLER.get()


def serve(name: str, handlers: Mapping[str, Callable[..., object]]) -> Server | None:
    """Start a `Server` at the default path, or log a warning and return None if its socket can't be made.

    Sockets that killed processes of this user have left in the default folders are removed before.
    """
    try:
        for folder in _folders():
            _sweep(folder)
        return Server(path_for(name), handlers)
    except (OSError, EngineError, RightsError) as error:
        _log.warning("no control socket: %s", error)
        return None


def serve_application(name: str, handlers: Mapping[str, Callable[..., object]]) -> tuple[str, Server | None]:
    """Start a `Server` for an application, and return the name under which `ctl` finds it.

    That is the application's name without characters that a file name can't have, with the process id added if it is in
    use. If no socket can be made, log a warning and return None: the application runs without it.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "spark"
    problem: object = None
    for free in (plain, f"{plain}-{os.getpid()}"):
        try:
            return free, serve(free, handlers)
        except ConfigError as error:
            problem = error
    _log.warning("no control socket: %s", problem)
    return plain, None


def ask(path: Path, command: str, /, *, timeout: float = 60.0, **arguments: object) -> Any:
    """Send a command to a running pipeline; return its result or raise its TreadleError."""
    request = line_of({"command": command, "arguments": arguments})
    if len(request) > LARGEST_REQUEST:
        raise too_long(LARGEST_REQUEST)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            waiting_connect(connection, str(_fitting(path)), timeout)
            if not _is_trusted(connection):
                raise PermissionError
            with suppress(BrokenPipeError):  # the server may refuse before it reads; its answer says why
                connection.sendall(request)
            line = Lines(connection, LARGEST_ANSWER).next(timeout)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise EngineError("no pipeline listens there", where=str(path), remedy="check that it runs") from error
        except TimeoutError as error:
            raise EngineError(
                f"no answer within {timeout:g} s", where=str(path), remedy="check that its process is not stopped"
            ) from error
        except PermissionError as error:
            remedy = "run as the user who runs the pipeline"
            raise RightsError("belongs to another user", where=str(path), remedy=remedy) from error
        except OSError as error:
            raise EngineError(f"{error}", where=str(path), remedy="try again") from error
    if line is None:
        raise EngineError("the pipeline ended without an answer", where=str(path), remedy="see its log")
    return result(line, path)


def path_for(name: str) -> Path:
    """The default path of a pipeline's control socket, in a folder that only this user can write to."""
    return (_session_folder() or runtime_folder.runtime_folder()) / f"{_PREFIX}{name}.sock"


def find() -> list[Path]:
    """The control sockets of this user's running pipelines."""
    return list(dict.fromkeys(path for folder in _folders() for path in _sockets(folder) if _is_live(path)))


def pick(name: str | None = None) -> Path:
    """The socket of the pipeline `name`; without it, of the only running one."""
    running = {name_of(path): path for path in find()}
    if name is not None:
        if name not in running:
            hint = suggestion(name, running, "start it with: treadle run FILE.py")
            raise EngineError(f"no pipeline '{name}' is running", remedy=hint)
        return running[name]
    if not running:
        raise EngineError("no pipeline is running", remedy="start one with: treadle run FILE.py")
    if len(running) > 1:
        raise EngineError(
            "several pipelines are running", remedy=f"name one of {', '.join(sorted(running))} with --pipeline"
        )
    return next(iter(running.values()))


def name_of(path: Path) -> str:
    """The name of a pipeline, from the default path of its socket."""
    return path.stem.removeprefix(_PREFIX)


def _folders() -> list[Path]:
    """The folders in which sockets of this user may be; a missing one, or another user's, is left out."""
    found: list[Path] = []
    for folder in (*runtime_folder.places(os.geteuid()), *filter(None, [_session_folder()])):
        with suppress(OSError, RightsError):
            found.append(runtime_folder.checked(folder, readable=True))
    return found


def _sockets(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.glob(f"{_PREFIX}*.sock"))
    return []


def _sweep(folder: Path) -> None:
    """Remove the sockets of this user on which no process listens. With the lock no socket is just being made."""
    with suppress(OSError), alone(folder / runtime_folder.LOCK):
        for path in _sockets(folder):
            with suppress(OSError):
                found = path.lstat()
                if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid() and _is_dead(path):
                    path.unlink()
                    _log.info("removed the control socket of a killed process: %s", path, extra={"path": str(path)})


def _listen(path: Path) -> socket.socket:
    """Make a listening socket at the path, in place of one that a dead process left."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with alone(_fitting(path).parent / runtime_folder.LOCK):
            _make_room(path)
            listener.bind(str(path))
            # No client can connect before listen(), so none connects before the mode is set.
            path.chmod(0o600)
            listener.listen(MOST_CLIENTS)
    except OSError as error:
        listener.close()
        problem = error.strerror or str(error)
        raise EngineError(
            f"the control socket can't be made: {problem}", where=str(path), remedy="choose another folder"
        ) from error
    except BaseException:
        listener.close()
        raise
    return listener


def _make_room(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError("exists already and is not a socket", where=str(path), remedy="choose another path")
    if _is_live(path):
        raise ConfigError(
            "a running pipeline listens there already",
            where=str(path),
            remedy="stop that one, or give this one another name",
        )
    path.unlink()


def _is_live(path: Path) -> bool:
    """Whether a process listens. EAGAIN: it does, but its queue of new connections is full."""
    return _connected(path) in (0, errno.EAGAIN)


def _is_dead(path: Path) -> bool:
    """Whether the socket is a dead process's: the kernel refuses connections to it."""
    return _connected(path) == errno.ECONNREFUSED


def _connected(path: Path) -> int:
    """Connect without waiting; return the error number, 0 if connected."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            return probe.connect_ex(str(path))
        except OSError:
            return errno.EINVAL  # not a valid path for a socket


def _fitting(path: Path) -> Path:
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        raise ConfigError(
            f"the path of a unix socket may have {LONGEST_PATH} bytes, this one has {length}",
            where=str(path),
            remedy="use a shorter name or folder",
        )
    return path


def _is_trusted(connection: socket.socket) -> bool:
    """Whether the peer process belongs to root or to our own user."""
    return peer(connection).uid in (0, os.geteuid())


def _session_folder() -> Path | None:
    """XDG_RUNTIME_DIR if this user owns it, else None: after sudo or su it often belongs to another user."""
    path = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    with suppress(OSError, RightsError):
        return runtime_folder.checked(path, readable=True) if path.is_absolute() else None
    return None


def _shut(connection: socket.socket, how: int) -> None:
    with suppress(OSError):  # already disconnected
        connection.shutdown(how)
