"""Whether a process listens at a TCP port of this host, as the kernel says."""

from __future__ import annotations

import os
from contextlib import suppress

_LISTENS = "0A"
"""The state of a socket that takes connections, in /proc/net/tcp."""


def listens(pid: int, port: int) -> bool:
    """Whether a process has a socket open that takes connections at this port, in our network namespace."""
    wanted = {f"socket:[{inode}]" for inode in _listening(port)}
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
        for file in files:
            with suppress(OSError):
                if os.readlink(file.path) in wanted:
                    return True
    return False


def _listening(port: int) -> set[str]:
    """The inodes of the sockets that take connections at a port."""
    found = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/self/net/{table}", encoding="ascii") as file:
            for words in map(str.split, file):
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    found.add(words[9])
    return found
