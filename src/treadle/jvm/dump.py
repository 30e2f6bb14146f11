"""The threads of a running JVM: name, kernel id, state and the top of the stack, from HotSpot's thread dump.

It parses the dump and maps thread ids from inside a container to ours. Thread names are those of the application and
may contain quotes and line breaks, so an id is accepted only if /proc/<pid>/task has it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import NamedTuple

from treadle.errors import EngineError, TargetGone
from treadle.jvm.attach import TIMEOUT, ask

FRAMES = 6
MOST, LONGEST_NAME = 1 << 16, 1 << 12
"""The most threads that a dump may have, and the most characters that are kept of a thread's name."""


class JavaThread(NamedTuple):
    """A thread in a JVM's dump."""

    name: str
    tid: int
    """The kernel's id of the thread, in our pid namespace."""
    state: str
    """`RUNNABLE`, `BLOCKED`, `WAITING`, `TIMED_WAITING`; empty for the JVM's own threads, such as those of the GC."""
    stack: tuple[str, ...]
    """The top frames, innermost first, as `package.Class.method`."""
    number: int = 0
    """Java's number of the thread; 0 for the JVM's own threads."""
    address: int = 0
    """The address of the JVM's record of a Java thread, else 0."""


def dump(
    pid: int, *, frames: int = FRAMES, stack_of: Callable[[str], bool] | None = None, timeout: float = TIMEOUT
) -> list[JavaThread]:
    """All threads of a JVM, also its own such as the GC's. A thread that is just starting or ending may be missing.

    Stacks are half of the cost of parsing: `stack_of` gets a thread's name and says whether its stack is wanted.
    """
    text, inner = ask(pid, "threaddump", timeout=timeout)
    threads = parse(text, frames=frames, stack_of=stack_of)
    if inner == pid:
        alive = _alive(pid)
        return [thread for thread in threads if thread.tid in alive]
    outer = _outer_ids(pid)
    return [thread._replace(tid=outer[thread.tid]) for thread in threads if thread.tid in outer]


def parse(text: str, *, frames: int = FRAMES, stack_of: Callable[[str], bool] | None = None) -> list[JavaThread]:
    """The threads in the text of a dump, with the ids of the JVM's own pid namespace."""
    threads: list[JavaThread] = []
    parts = iter(text.split('"')[1:])  # quotes occur only around names, and perhaps inside names
    match = _HEADER.match
    for name in parts:
        for rest in parts:
            header = match(rest) if rest.endswith("\n") else None
            if header:
                break
            name += '"' + rest
        else:
            break
        if len(threads) == MOST:
            raise EngineError(f"reports more than {MOST} threads", remedy="find out what runs in that JVM")
        name = name[:LONGEST_NAME]
        number, address, nid, state = header.groups("")
        if nid != "NA":  # a thread that has not started yet
            stack: tuple[str, ...] = ()
            if state and frames and (stack_of is None or stack_of(name)):
                stack = tuple([frame.partition("(")[0] for frame in rest.split("\n\tat ", frames)[1:]])
            threads.append(
                JavaThread(name, _number(nid), state, stack, int(number or 0), int(address, 16) if number else 0)
            )
    return threads


def _number(text: str) -> int:
    return int(text, 16) if text.startswith("0x") else int(text)


_HEADER = re.compile(
    r" (?:#([0-9]{1,18}) |os_prio=)[^\n]* tid=(0x[0-9a-f]{1,16}) nid=(0x[0-9a-f]{1,7}|[0-9]{1,9}|NA) [^\n]*\n"
    r"(?:   java\.lang\.Thread\.State: ([A-Z_]+))?"
)
"""The text of a dump after a thread's name: two lines, or one for the JVM's own threads."""

_INNER: dict[int, dict[int, int]] = {}
"""Process id -> thread id -> the thread's id inside its container."""


def _outer_ids(pid: int) -> dict[int, int]:
    """Id inside the container -> our id of the thread. These ids never change, so each thread is read only once."""
    alive = _alive(pid)
    known = _INNER.get(pid, {})
    _INNER[pid] = found = {tid: known.get(tid) or _inner_id(pid, tid) for tid in alive}
    return {inner: tid for tid, inner in found.items() if inner}


def _alive(pid: int) -> set[int]:
    """The ids of all threads of a process, from /proc."""
    try:
        return set(map(int, os.listdir(f"/proc/{pid}/task")))
    except (FileNotFoundError, ProcessLookupError) as error:
        _INNER.pop(pid, None)
        raise TargetGone("ended", where=f"process {pid}") from error


def _inner_id(pid: int, tid: int) -> int:
    """A thread's id inside its container; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/task/{tid}/status", "rb", buffering=0) as file:
            text = file.read(4096)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    at = text.index(b"\nNSpid:")
    return int(text[at : text.index(b"\n", at + 1)].split()[-1])
