"""Inputs that another process could send, as many as `TREADLE_FUZZ` says; in the usual run only some."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

FUZZ = settings(
    max_examples=int(os.environ.get("TREADLE_FUZZ", "100")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)

NUMBERS = st.one_of(
    st.integers(-3, 10).map(str),
    st.sampled_from(["", "nan", "-inf", "1e999", "0x1", "9" * 20, "9" * 5000, str(2**63), str(-(2**64)), "٣", "1_0"]),
)
WORDS = st.one_of(NUMBERS, st.text(max_size=8), st.sampled_from(["id = ", "\\n", "\\\\", "a,b", "1,2,3", "\x1b[2J"]))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(10**400)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def objects(*keys: str) -> st.SearchStrategy[dict[str, object]]:
    """JSON objects with some of these keys, and anything as their values."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(keys, JSON))


@contextmanager
def sent(data: bytes) -> Iterator[socket.socket]:
    """A connection whose other end sends this, and then no more."""
    here, there = socket.socketpair()

    def send() -> None:
        with there, suppress(OSError):
            there.sendall(data)
            there.shutdown(socket.SHUT_WR)
            there.recv(1 << 16)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield here
    finally:
        here.close()
        sender.join()
