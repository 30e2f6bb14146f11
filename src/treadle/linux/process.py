"""One process, identified by its id and start time, so a later process with the same id is never mistaken for it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from treadle.errors import EngineError, RightsError, TargetGone
from treadle.linux import stat


@contextmanager
def folder(pid: int, start_time: int) -> Iterator[int]:
    """A descriptor of /proc/PID of the process with this start time, in clock ticks since boot.

    After the process has ended, no file can be opened through the descriptor.
    """
    try:
        handle = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if stat.start_time(read(handle, "stat")) != start_time:
                raise TargetGone("has ended, and another process has its id", where=f"process {pid}")
            yield handle
        finally:
            os.close(handle)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetGone("has ended", where=f"process {pid}") from error


def read(handle: int, file: str) -> bytes:
    """The beginning of a small file of /proc/PID."""
    opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=handle)
    try:
        return os.read(opened, 1 << 14)
    finally:
        os.close(opened)


def claim(pid: int, start_time: int) -> int | None:
    """Claim a process until the returned descriptor is closed or we end; None if another process has claimed it.

    The claim is a lock on the process's own file `environ`. The kernel lets only the owner of the process and root
    open it, so these exclude each other, and a third user can't block the claim. The lock needs no file name that
    another user could take first, and leaves no file behind.
    """
    with folder(pid, start_time) as process:
        try:
            handle = os.open("environ", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
        except PermissionError as error:
            remedy = "run as the user of that process, or as root (in a container with CAP_SYS_PTRACE)"
            raise RightsError("can't be inspected by this user", where=f"process {pid}", remedy=remedy) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError as error:
            os.close(handle)
            raise EngineError(f"can't be locked: {error.strerror}", where=f"process {pid}/environ") from error
        return handle
