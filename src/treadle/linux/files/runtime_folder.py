"""The folders in which a user's processes meet at sockets: only that user can write there.

Each place follows from the uid alone, not from the environment, so that all processes of a user agree on it and root
finds it. What is in a folder of another user is never reached through a symbolic link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from treadle.errors import RightsError
from treadle.linux.files import trusted


def places(uid: int) -> list[Path]:
    """Where the folder of a user may be, the better place first: /run/user/UID is there while the user is logged in."""
    return [Path("/run/treadle")] if uid == 0 else [Path(f"/run/user/{uid}/treadle"), Path(f"/tmp/treadle-{uid}")]


def runtime_folder() -> Path:
    """This user's own folder, made if need be."""
    uid = os.geteuid()
    best, *others = places(uid)
    return private_folder(best if not others or _belongs_to(best.parent, uid) else others[0], readable=True)


def private_folder(path: Path, *, readable: bool = False) -> Path:
    """This folder, made if need be; refused unless it is this user's alone, since anybody may write to /tmp.

    Others may read it if it is `readable`, as a service manager makes folders in /run.
    """
    try:
        trusted.mkdir(path, 0o700)
    except OSError as error:
        remedy = "let this user write there"
        raise RightsError(f"can't be made: {error.strerror or error}", where=str(path), remedy=remedy) from error
    return checked(path, readable=readable)


def checked(path: Path, *, readable: bool = False) -> Path:
    """This folder, refused unless it is this user's alone."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RightsError("is not a folder of this user's", where=str(path), remedy="have root remove it")
    if stat.S_IMODE(found.st_mode) & (0o022 if readable else 0o077):
        raise RightsError("is open to other users", where=str(path), remedy=f"chmod 700 {path}")
    return path


@contextmanager
def opened(path: Path, uid: int) -> Iterator[int | None]:
    """A handle of a user's folder; None if it is not there, is a link, or others can write to it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        found = os.fstat(handle)
        yield handle if found.st_uid == uid and not found.st_mode & 0o022 else None
    finally:
        os.close(handle)


def _belongs_to(path: Path, uid: int) -> bool:
    with suppress(OSError):
        found = path.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == uid
    return False
