"""Bounds on what another process sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from treadle.errors import EngineError
from treadle.linux.files import bounded


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_all_that_came_until_the_end_is_returned(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    sent = bytes(range(256)) * 4096  # longer than the buffer

    def send() -> None:
        there.sendall(sent)
        there.close()

    sender = threading.Thread(target=send)
    sender.start()
    assert bounded.receive(here, 1 << 20, 30) == sent
    sender.join()


def test_an_endless_answer_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends

    def send() -> None:
        with suppress(OSError):
            while True:
                there.sendall(bytes(1 << 16))

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(EngineError, match="more than 1000000 bytes"):
        bounded.receive(here, 1_000_000, 30)
    here.close()
    sender.join()


def test_one_byte_at_a_time_does_not_extend_the_time(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    over = threading.Event()

    def drip() -> None:
        with suppress(OSError):
            while not over.wait(0.02):
                there.send(b".")

    sender = threading.Thread(target=drip)
    sender.start()
    with pytest.raises(EngineError, match=r"within 0\.2 s"):
        bounded.receive(here, 1_000_000, 0.2)
    over.set()
    sender.join()


def test_a_silent_peer_is_given_up(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(EngineError, match=r"within 0\.05 s"):
        bounded.receive(ends[0], 10, 0.05)
