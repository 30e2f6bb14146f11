"""What an attachment does, for `treadle top` in another process on this host.

A socket for each process that is scheduled, in a folder that only the user of the attachment can write to. Both sides
ask the kernel for the other's user: root and the attachment's own user are answered, and an answer is believed from
root, from ourselves, and from the owner of the very process that it is about.
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
from typing import Any, NamedTuple

from treadle.attachment.shown import shape
from treadle.engines.spark.application import Application, Process
from treadle.errors import EngineError, TargetGone, TreadleError
from treadle.linux import users
from treadle.linux.files import runtime_folder
from treadle.linux.files.bounded import receive
from treadle.linux.sockets import peer, waiting_connect

log = logging.getLogger("treadle.attach")

PATIENCE = 10.0
"""Seconds for a whole answer: whoever schedules may be short of CPU."""
LARGEST = 8 << 20
"""Bytes of an answer: enough for 10,000 threads."""
PREFIX = "status-"
Status = dict[str, Any]


class _Open(NamedTuple):
    listening: socket.socket
    path: str


class Published:
    """Answers from threads of its own, until it is closed."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._open: dict[Process, _Open] = {}

    def add(self, processes: Iterable[Process]) -> None:
        """Answer for these, too. They must be claimed by us: a socket that is there already was left by a dead one."""
        try:
            folder = str(runtime_folder.runtime_folder())
            for process in processes:
                self._open[process] = self._listen(f"{folder}/{_name(process)}")
            _sweep(folder, {each.path for each in self._open.values()})
        except (OSError, TreadleError) as error:
            log.warning("`treadle top` elsewhere can't show what is done here: %s", error, extra={"error": str(error)})

    def drop(self, processes: Iterable[Process]) -> None:
        """Answer for these no more."""
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
                continue  # the one that asked has gone
            except Exception:  # whoever asks next must not wait for a thread that has ended
                log.exception("the status could not be given")


def ask(applications: Iterable[Application]) -> Status | None:
    """The status of the one that schedules one of these applications; None if nobody does, or does not answer us."""
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
    """The users whose word counts for a process, each once."""
    found = [0, os.geteuid()]
    with suppress(TargetGone):
        found.append(users.owner(process.pid, process.start_time))
    return list(dict.fromkeys(found))


def _connect(folder: int, name: str, uid: int) -> socket.socket | None:
    """A connection to a user's socket in a user's folder; None if nobody listens there, or somebody else."""
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
    """The status that comes; None where the other side hung up without one, as it does when it ends."""
    with connection:
        where = f"process {peer(connection).pid}, which schedules it"
        try:
            text = receive(connection, LARGEST, PATIENCE)
            return shape.read(text) if text else None
        except OSError:
            return None
        except EngineError as error:
            raise EngineError(error.message, where=where, remedy=error.remedy) from None


def _sweep(folder: str, ours: Collection[str]) -> None:
    """Remove the sockets that killed attachments have left: nobody listens there."""
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
