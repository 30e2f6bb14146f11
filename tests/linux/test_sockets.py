"""Connecting to a listener whose backlog is full, as it is for a moment when many clients come at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from treadle.linux.sockets import waiting_connect


@pytest.fixture
def full(tmp_path: Path) -> Iterator[socket.socket]:
    """A listener that takes nobody, with as many clients in its backlog as fit."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        while True:
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            if client.connect_ex(str(tmp_path / "s")):
                break
        yield listener


def test_it_waits_until_there_is_room(full: socket.socket) -> None:
    full.settimeout(0.01)
    with ExitStack() as stack:
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        connecting = threading.Thread(target=waiting_connect, args=(client, full.getsockname(), 60.0))
        connecting.start()
        while connecting.is_alive():
            with suppress(TimeoutError):
                stack.enter_context(full.accept()[0])
        assert client.getpeername() == full.getsockname()
        assert client.gettimeout() == 60.0


@pytest.mark.parametrize("timeout", [0.0, 0.02])
def test_it_gives_up_in_time(full: socket.socket, timeout: float) -> None:
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(TimeoutError):
        waiting_connect(client, full.getsockname(), timeout)


def test_a_path_without_a_listener_is_refused_at_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(FileNotFoundError):
        waiting_connect(client, str(tmp_path / "none"), 60.0)
