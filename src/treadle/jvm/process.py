"""Facts about the process of a JVM from /proc: its user, its command line, whether it is ending. It sends no signal.

A process itself determines the length of its command line and its list of mappings, so reads have a limit.
"""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from treadle.errors import EngineError, TargetGone
from treadle.linux import stat
from treadle.linux.identity import status

LONGEST = 1 << 24
"""Limit on the bytes read of a file in /proc. The mappings of a JVM with 30,000 of them need a quarter of it."""
_EXITING = 0x4  # PF_EXITING of the kernel


class Facts(NamedTuple):
    """What /proc/<pid>/status says of a process."""

    pid: int
    inner: int
    """The id in its own pid namespace: in a container it differs from `pid`."""
    uid: int
    gid: int
    threads: int
    stopped: bool
    catches_quit: bool

    @property
    def where(self) -> str:
        return f"process {self.pid}"

    @property
    def user(self) -> str:
        with suppress(KeyError):
            return pwd.getpwuid(self.uid).pw_name
        return str(self.uid)

    @property
    def socket(self) -> str:
        """The name of the socket in the JVM's /tmp at which the JVM accepts commands."""
        return f".java_pid{self.inner}"

    @property
    def trigger(self) -> str:
        """The name of the trigger file: with this file SIGQUIT means attach, without it a thread dump on stdout."""
        return f".attach_pid{self.inner}"


def facts_of(pid: int) -> Facts:
    """The facts of a process; an error if it has ended."""
    try:
        process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise TargetGone("no such process", where=f"process {pid}") from error
    try:
        lines = status(process)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetGone("no such process", where=f"process {pid}") from error
    finally:
        os.close(process)
    return _facts(pid, lines)


def _facts(pid: int, lines: dict[bytes, bytes]) -> Facts:
    where = f"process {pid}"
    if lines[b"State"][:1] in b"ZX":  # a zombie
        raise TargetGone("has ended", where=where)
    owner = int(lines[b"Tgid"])
    if owner != pid:
        raise EngineError(f"this is a thread of process {owner}", where=where, remedy=f"use {owner}")
    return Facts(
        pid=pid,
        inner=int(lines.get(b"NSpid", b"%d" % pid).split()[-1]),
        uid=int(lines[b"Uid"].split()[1]),
        gid=int(lines[b"Gid"].split()[1]),
        threads=int(lines[b"Threads"]),
        stopped=lines[b"State"][:1] in b"Tt",
        catches_quit=bool(int(lines[b"SigCgt"], 16) & 1 << signal.SIGQUIT - 1),
    )


def is_ending(pid: int) -> bool:
    """Whether a process has ended or is ending. Its sockets are closed then, even in the middle of an answer."""
    try:
        found = stat.read(pid, last=stat.FLAGS)
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(found[stat.FLAGS]) & _EXITING)


def libraries(pid: int) -> tuple[bool, bool]:
    """Whether a JVM's library is loaded, and whether OpenJ9's library is loaded."""
    text = _read(pid, "maps")
    return b"/libjvm.so" in text, b"/libj9vm" in text


def given(pid: int) -> Iterable[str]:
    """All words of a JVM's command line and option variables, in the order in which the JVM applies them."""
    known = dict(word.partition("=")[::2] for word in words_of(pid, "environ"))
    yield from known.get("JAVA_TOOL_OPTIONS", "").split()
    yield from known.get("JDK_JAVA_OPTIONS", "").split()
    yield from words_of(pid, "cmdline")
    yield from known.get("_JAVA_OPTIONS", "").split()


def words_of(pid: int, name: str) -> list[str]:
    """The words of a command line (`cmdline`) or an environment (`environ`)."""
    return os.fsdecode(_read(pid, name)).split("\0")[:-1]


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        text = bytearray()
        while len(text) < LONGEST and (some := file.read(1 << 18)):
            text += some
    return bytes(text)
