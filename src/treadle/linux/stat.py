"""The file `stat` of a process or a thread, as proc_pid_stat(5) describes it."""

from __future__ import annotations

import os

TICK = 1.0 / os.sysconf("SC_CLK_TCK")


STATE, PARENT, FLAGS, NICE, STARTED, REALTIME, POLICY = 0, 1, 6, 16, 19, 37, 38
"""Indexes into the result of `fields`: index 0 is field 3 of the man page."""
_TIMES = slice(11, 15)
_ROOM = 2048
"""Number of bytes to read: more than any `stat` file has."""


def fields(text: bytes, last: int = POLICY) -> list[bytes]:
    """The fields after the process name, up to index `last`. The name may contain any character, also brackets."""
    return text[text.rindex(b")") + 2 :].split(None, last + 1)[: last + 1]


def read(pid: int, tid: int | None = None, last: int = POLICY) -> list[bytes]:
    """The fields of a process or of one of its threads. Raises OSError after its end."""
    path = f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat"
    with open(path, "rb", buffering=0) as file:
        return fields(file.read(_ROOM), last)


def start_time(text: bytes) -> int:
    """The start time, in clock ticks since boot: together with the id it identifies a process or thread."""
    return int(fields(text, STARTED)[STARTED])


def tree_times(found: list[bytes]) -> float:
    """CPU seconds of a process and of its ended children that it has waited for, from the fields of its `stat`."""
    return sum(map(int, found[_TIMES])) * TICK
