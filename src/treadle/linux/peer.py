"""Who is at the other end of a Unix socket, as the kernel says: it can't be lied about."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """A process and its user."""

    pid: int
    uid: int
    gid: int


def peer(connection: socket.socket) -> Peer:
    """The process that connected, or listens there."""
    return Peer(*_CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)))
