"""Connect to a unix socket, and wait while the listener's backlog is full."""

from __future__ import annotations

import socket
import struct

_TIMEVAL = struct.Struct("@ll")


def waiting_connect(connection: socket.socket, path: str, timeout: float) -> None:
    """Connect within `timeout` seconds, or raise TimeoutError. The socket keeps `timeout` for what follows.

    A socket with a Python time-out does not block in the kernel. Where the listener's backlog is full, its connect()
    fails at once with EAGAIN instead of waiting for room, so the kernel's own time-out (SO_SNDTIMEO) is used here.
    """
    connection.settimeout(None)
    seconds = int(timeout)
    microseconds = max(int((timeout - seconds) * 1e6), 0 if seconds else 1)  # 0 s would mean to wait for ever
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(seconds, microseconds))
    try:
        connection.connect(path)
    except BlockingIOError as error:
        raise TimeoutError("the listener takes no more connections") from error
    connection.settimeout(timeout)
