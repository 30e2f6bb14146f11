"""Sockets: the process at the other end, whether a process listens, and a connect that waits for room in a backlog."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_CREDENTIALS = struct.Struct("3i")
_TIMEVAL = struct.Struct("@ll")
_LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""


class Peer(NamedTuple):
    """A process and its user."""

    pid: int
    uid: int
    gid: int


def peer(connection: socket.socket) -> Peer:
    """The process at the other end of a Unix socket. The kernel reports it, so the peer can't fake it."""
    return Peer(*_CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)))


def waiting_connect(connection: socket.socket, path: str, timeout: float) -> None:
    """Connect within `timeout` seconds, or raise TimeoutError. The socket keeps `timeout` for what follows.

    A socket with a Python time-out does not block in the kernel. Where the listener's backlog is full, its connect()
    fails at once with EAGAIN instead of waiting for room, so the kernel's own time-out (SO_SNDTIMEO) is used here.
    """
    deadline = time.monotonic() + timeout
    connection.settimeout(None)
    while True:
        left = max(deadline - time.monotonic(), 1e-6)  # 0 s would mean no limit
        seconds, part = divmod(left, 1.0)
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(seconds), max(int(part * 1e6), int(seconds < 1.0)))
        )
        try:
            connection.connect(path)
        except BlockingIOError as error:
            raise TimeoutError("the listener takes no more connections") from error
        if _is_connected(connection):
            break
    connection.settimeout(timeout)


def _is_connected(connection: socket.socket) -> bool:
    """False if a signal interrupted connect(): Python then takes a writable socket for a connected one."""
    try:
        connection.getpeername()
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            return False
        raise
    return True


def listens(pid: int, port: int) -> bool:
    """Whether a process has an open socket that listens at this port, in our network namespace."""
    wanted = {f"socket:[{inode}]" for inode in _listening(port)}
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
        for file in files:
            with suppress(OSError):
                if os.readlink(file.path) in wanted:
                    return True
    return False


def _listening(port: int) -> set[str]:
    """The inodes of the sockets that listen at a port."""
    found = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/self/net/{table}", encoding="ascii") as file:
            for words in map(str.split, file):
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    found.add(words[9])
    return found


def listener(port: int) -> str:
    """Return pid and command of the process that uses this port, as a phrase; empty if it is another user's."""
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            inodes |= {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1][-4:], 16) == port}
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # descriptors and processes may end during the scan
            if os.readlink(handle) in inodes:
                process = handle.parent.parent
                return f" by process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""
