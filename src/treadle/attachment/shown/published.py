"""Publishes the status of an attachment, for `treadle top` in another process on this host.

There is a Unix socket for each scheduled process, in a folder that only the user of the attachment can write to. Both
sides ask the kernel for the other's user. The attachment answers root and its own user; a reader trusts answers from
root, from its own user, and from the owner of the process that the answer is about.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from treadle.attachment.shown import shape
from treadle.engines.spark.application import Application, Process
from treadle.errors import EngineError, TargetGone, TreadleError
from treadle.linux import users
from treadle.linux.files import runtime_folder
from treadle.linux.files.bounded import receive
from treadle.linux.files.file_lock import alone
from treadle.linux.sockets import peer, waiting_connect

log = logging.getLogger("treadle.attach")

PATIENCE = 10.0
"""Maximum seconds for a whole answer: the process that schedules may be short of CPU."""
LARGEST = 8 << 20
"""Maximum bytes of an answer: enough for 10,000 threads."""
PREFIX = "status-"
Status = dict[str, Any]


class _Open(NamedTuple):
    listening: socket.socket
    path: str


class Published:
    """The sockets of an attachment, each served by a thread of its own."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._open: dict[Process, _Open] = {}

    def add(self, processes: Iterable[Process]) -> None:
        """Open a socket for each of these processes, which this attachment must have claimed.

        So an existing socket was left by a dead attachment, and is replaced.
        """
        try:
            folder = str(runtime_folder.runtime_folder())
            with alone(
                Path(folder) / runtime_folder.LOCK
            ):  # else another process could take a new socket for a dead one
                for process in processes:
                    self._open[process] = self._listen(f"{folder}/{_name(process)}")
                _sweep(folder, {each.path for each in self._open.values()})
        except (OSError, TreadleError) as error:
            log.warning("`treadle top` can't show this attachment: %s", error, extra={"error": str(error)})

    def drop(self, processes: Iterable[Process]) -> None:
        """Close the sockets of these processes."""
        for process in processes:
            if (open_one := self._open.pop(process, None)) is not None:
                with suppress(OSError):
                    os.unlink(open_one.path)
                with suppress(OSError):
                    open_one.listening.shutdown(socket.SHUT_RDWR)  # which wakes its thread
                open_one.listening.close()

    def close(self) -> None:
        self.drop(list(self._open))

    def _listen(self, path: str) -> _Open:
        listening = socket.socket(socket.AF_UNIX)
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
            listening.bind(path)
            listening.listen()
        except BaseException:
            listening.close()
            raise
        threading.Thread(target=self._serve, args=(listening,), name="treadle-published", daemon=True).start()
        return _Open(listening, path)

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            try:
                with connection:
                    connection.settimeout(PATIENCE)
                    if peer(connection).uid in (0, os.geteuid()):
                        connection.sendall(json.dumps(self._status()).encode())
            except OSError:
                continue  # the client has disconnected
            except Exception:  # the thread must go on, for the next client
                log.exception("the status could not be sent to `treadle top`")


def ask(applications: Iterable[Application]) -> Status | None:
    """Return the status of the attachment that schedules one of these applications; None if none answers us."""
    for application in applications:
        for process in application.processes:
            for uid in _believed(process):
                for place in runtime_folder.places(uid):
                    with runtime_folder.opened(place, uid) as folder:
                        connection = None if folder is None else _connect(folder, _name(process), uid)
                    if connection is not None:
                        return _answer(connection)
    return None


def _believed(process: Process) -> list[int]:
    """Return the uids that are trusted to answer for a process, each once."""
    found = [0, os.geteuid()]
    with suppress(TargetGone):
        found.append(users.owner(process.pid, process.start_time))
    return list(dict.fromkeys(found))


def _connect(folder: int, name: str, uid: int) -> socket.socket | None:
    """Connect to a user's socket in the user's folder; None if no process of this user (or root) listens there."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        # Through a handle of the socket itself, since connect() would follow a link.
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            if stat.S_ISSOCK(os.fstat(handle).st_mode):
                waiting_connect(connection, f"/proc/self/fd/{handle}", PATIENCE)
                if peer(connection).uid in (0, uid):
                    return connection
        finally:
            os.close(handle)
    except OSError:
        pass
    connection.close()
    return None


def _answer(connection: socket.socket) -> Status | None:
    """Receive the status; None if the other side disconnects without sending one, as it does when it ends."""
    with connection:
        where = f"treadle process {peer(connection).pid}"
        try:
            text = receive(connection, LARGEST, PATIENCE)
            return shape.read(text) if text else None
        except OSError:
            return None
        except EngineError as error:
            raise EngineError(error.message, where=where, remedy=error.remedy) from None


def _sweep(folder: str, ours: Collection[str]) -> None:
    """Remove the sockets that killed attachments have left, on which no process listens."""
    for name in os.listdir(folder):
        if name.startswith(PREFIX) and f"{folder}/{name}" not in ours:
            with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
                probe.setblocking(False)
                try:
                    probe.connect(f"{folder}/{name}")
                except ConnectionRefusedError:
                    os.unlink(f"{folder}/{name}")


def _name(process: Process) -> str:
    return f"{PREFIX}{process.pid}-{process.start_time}"
