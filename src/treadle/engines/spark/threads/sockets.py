"""The bytes that a thread has exchanged over the network, as the kernel counts them on the sockets it waits for.

For a thread in `epoll_wait`, /proc shows which set of files the thread waits for; the kernel's socket diagnosis
(`NETLINK_SOCK_DIAG`) has the bytes received and sent on each socket. The contents are not read.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import struct
from contextlib import closing, suppress
from typing import NamedTuple

_SOCK_DIAG_BY_FAMILY, _DONE, _ERROR = 20, 3, 2
_REQUEST_DUMP = 0x301
_TCP_INFO = 2
_INODE, _ATTRIBUTES = 68, 72  # in the kernel's struct inet_diag_msg
_BYTES = 120  # of bytes_acked and bytes_received in struct tcp_info
_EPOLL_WAIT = {"x86_64": ("232", "281", "441"), "aarch64": ("22", "441")}
"""By machine, the numbers of the system calls epoll_wait (not on ARM), epoll_pwait and epoll_pwait2."""


class Traffic(NamedTuple):
    """The bytes of some sockets, summed up."""

    sent: int
    received: int


def by_inode() -> dict[int, Traffic]:
    """Return the bytes of all TCP sockets in our network namespace, by inode; empty if the kernel has no figures."""
    found: dict[int, Traffic] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            found.update(_ask(family))
    return found


def traffic(pid: int, tid: int, known: dict[int, Traffic]) -> Traffic | None:
    """Return the bytes on the sockets that a thread waits for; None if it does not wait just now, or has no socket."""
    try:
        with open(f"/proc/{pid}/task/{tid}/syscall") as file:
            words = file.read().split()
        if words[0] not in _EPOLL_WAIT.get(platform.machine(), ()):
            return None
        with open(f"/proc/{pid}/fdinfo/{int(words[1], 16)}") as file:
            files = re.findall(r"^tfd:\s+(\d+)", file.read(), re.MULTILINE)
    except (OSError, IndexError, ValueError):
        return None
    sent = received = 0
    for number in files:
        with suppress(OSError):
            inode = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{number}"))
            there = known.get(int(inode[1])) if inode else None
            if there is not None:
                sent, received = sent + there.sent, received + there.received
    return Traffic(sent, received) if sent or received else None


def _ask(family: int) -> dict[int, Traffic]:
    everything = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 1 << _TCP_INFO - 1, 0xFFFFFFFF) + bytes(48)
    head = struct.pack("=IHHII", 16 + len(everything), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    found: dict[int, Traffic] = {}
    with closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)) as line:
        line.settimeout(1.0)
        line.send(head + everything)
        while True:
            data = line.recv(1 << 20)
            at = 0
            while at < len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind in (_DONE, _ERROR):
                    return found
                _take(data[at + 16 : at + length], found)
                at += length + 3 & ~3


def _take(message: bytes, found: dict[int, Traffic]) -> None:
    (inode,) = struct.unpack_from("=I", message, _INODE)
    at = _ATTRIBUTES
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _TCP_INFO and length >= 4 + _BYTES + 16:
            found[inode] = Traffic(*struct.unpack_from("=QQ", message, at + 4 + _BYTES))
        at += max(4, length + 3 & ~3)
