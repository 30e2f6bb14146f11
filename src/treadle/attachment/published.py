"""What an attachment does, for whoever asks on this host: `treadle top` of one that runs in another process.

A name of the kernel's for each process that is scheduled, which ends with its owner; root and the owner's own user are
answered.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from treadle.engines.spark.application import Application, Process
from treadle.linux.peer import peer

PATIENCE = 2.0
"""Seconds for an answer."""
Status = dict[str, Any]


class Published:
    """Answers from threads of its own, until it is closed."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._open: list[socket.socket] = []

    def add(self, processes: Iterable[Process]) -> None:
        """Answer for these too."""
        for process in processes:
            listening = socket.socket(socket.AF_UNIX)
            try:
                listening.bind(_name(process))
            except OSError:  # somebody has the name: then nobody is told
                listening.close()
                continue
            listening.listen()
            self._open.append(listening)
            threading.Thread(target=self._serve, args=(listening,), name="treadle-published", daemon=True).start()

    def close(self) -> None:
        while self._open:
            listening = self._open.pop()
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # which wakes its thread
            listening.close()

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(PATIENCE)
                if peer(connection).uid in (0, os.geteuid()):
                    connection.sendall(json.dumps(self._status()).encode())


def ask(applications: Iterable[Application]) -> Status | None:
    """What is told by the one that schedules one of these; None if nobody does, or it does not answer us."""
    for application in applications:
        for process in application.processes:
            with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PATIENCE)
                connection.connect(_name(process))
                found: Status = json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
                return found
    return None


def _name(process: Process) -> str:
    return f"\0treadle-status-{process.pid}-{process.start_time}"
