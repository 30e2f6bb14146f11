"""Reads from a socket with a limit on the bytes and on the total time.

The timeout of a socket starts again with each piece that arrives, so a peer that sends one byte a second never exceeds
it. Here the limit holds for the whole answer.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

from treadle.errors import EngineError

PIECE = 1 << 16
"""Bytes that are received at once."""
_KEPT = 1 << 22
"""Bytes of the largest buffer that a thread keeps for its next answer."""


class TimeOverError(EngineError):
    """The peer took longer than allowed."""


class TooLongError(EngineError):
    """The peer sent more than allowed."""


def receive(connection: socket.socket, most: int, seconds: float) -> bytes:
    """Read until the end of the stream; an error after more than `most` bytes or `seconds`."""
    end = time.monotonic() + seconds
    room, filled = _BUFFERS.mine, 0
    while count := _within(connection, memoryview(room)[filled:], end, seconds):
        filled += count
        if filled > most:
            raise too_long(most)
        if filled == len(room):
            room = room + bytes(len(room))
            if len(room) <= _KEPT:
                _BUFFERS.mine = room
    return bytes(memoryview(room)[:filled])


def piece(connection: socket.socket, end: float, seconds: float, most: int = PIECE) -> bytes:
    """Receive the next bytes, waiting until `end` (monotonic clock); empty at the end of the stream.

    `seconds` is the limit for the whole answer, for the error message.
    """
    room = memoryview(_BUFFERS.mine)
    return bytes(room[: _within(connection, room[: min(most, PIECE)], end, seconds)])


def decoded(text: str | bytes) -> Any:
    """Parse JSON from a peer; an error if the text is not JSON or is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineError("does not answer in valid JSON") from error


def too_long(most: int) -> TooLongError:
    """The error for a peer that sends more than `most` bytes."""
    return TooLongError(f"sends more than {most} bytes", remedy="check which program answers there")


def _within(connection: socket.socket, room: memoryview, end: float, seconds: float) -> int:
    left = end - time.monotonic()
    try:
        if left <= 0.0:
            raise TimeoutError
        connection.settimeout(left)
        return connection.recv_into(room)
    except TimeoutError:
        raise TimeOverError(
            f"does not answer within {seconds:g} s", remedy="see whether it hangs, or has no CPU to run on"
        ) from None


class _Buffers(threading.local):
    """One reused buffer per thread: allocating memory costs more than writing to it."""

    def __init__(self) -> None:
        self.mine = bytearray(1 << 18)


_BUFFERS = _Buffers()
