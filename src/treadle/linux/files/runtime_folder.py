"""The folders for the sockets through which a user's processes communicate: only that user can write there.

A folder's path depends only on the uid, not on the environment, so all processes of a user use the same one and root
finds it. Folders of other users are never opened through a symbolic link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from treadle.errors import RightsError
from treadle.linux.files import trusted

LOCK = ".treadle.lock"
"""The file in such a folder by which one process at a time makes sockets there, or removes those of dead processes."""


def places(uid: int) -> list[Path]:
    """Possible paths of a user's folder, the better one first: /run/user/UID exists while the user is logged in."""
    return [Path("/run/treadle")] if uid == 0 else [Path(f"/run/user/{uid}/treadle"), Path(f"/tmp/treadle-{uid}")]


def runtime_folder() -> Path:
    """This user's own folder, made if it is missing."""
    uid = os.geteuid()
    best, *others = places(uid)
    return private_folder(best if not others or _belongs_to(best.parent, uid) else others[0], readable=True)


def private_folder(path: Path, *, readable: bool = False) -> Path:
    """Make a folder if it is missing; refuse one that belongs to others, since every user may write to /tmp.

    If `readable`, other users may read it, as in folders that a service manager makes in /run.
    """
    try:
        trusted.mkdir(path, 0o700)
    except OSError as error:
        remedy = "let this user write there"
        raise RightsError(f"can't be made: {error.strerror or error}", where=str(path), remedy=remedy) from error
    return checked(path, readable=readable)


def checked(path: Path, *, readable: bool = False) -> Path:
    """Return a folder; refuse one that others own or may write (or read, unless `readable`)."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise RightsError("is not a folder of this user's", where=str(path), remedy="have root remove it")
    if stat.S_IMODE(found.st_mode) & (0o022 if readable else 0o077):
        raise RightsError("is open to other users", where=str(path), remedy=f"chmod 700 {path}")
    return path


@contextmanager
def opened(path: Path, uid: int) -> Iterator[int | None]:
    """A descriptor of a user's folder; None if it is missing, a link, another user's, or writable by others."""
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
