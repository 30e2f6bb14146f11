"""Files that only this user or root can have written."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from treadle.errors import RightsError

_WRITABLE_BY_OTHERS, _ENTERED_BY_OTHERS = 0o022, 0o011


def read(path: Path) -> bytes:
    """The contents of an ordinary file that only this user or root owns and can write; an error for any other file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        remedy = f"remove it: rm -r '{path}'"
        raise RightsError(f"can't be opened: {error.strerror}", where=str(path), remedy=remedy) from error
    with open(file, "rb") as stream:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise RightsError("is not an ordinary file", where=str(path), remedy=f"remove it: rm -r '{path}'")
        if not _is_ours(about):
            raise RightsError("belongs to another user", where=str(path), remedy="remove it, or use another folder")
        if about.st_mode & _WRITABLE_BY_OTHERS:
            raise RightsError("can be written by others", where=str(path), remedy=f"remove it: rm '{path}'")
        return stream.read()


def write(path: Path, contents: bytes) -> None:
    """Write a file that only this user can change, atomically; an error if others can change files in its folder.

    A symbolic link with this name is replaced, not followed.
    """
    folder = Path(os.path.realpath(path.parent))
    if why := doubt(folder):
        raise RightsError(why, where=str(path), remedy="let only its owner change it, or use another folder")
    draft = folder / f".treadle-{secrets.token_hex(8)}"
    try:
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(file, "wb") as stream:
                stream.write(contents)
            os.rename(draft, folder / path.name)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft)
            raise
    except OSError as error:
        remedy = "make the folder, and let this user write there"
        raise RightsError(f"can't be written: {error.strerror}", where=str(path), remedy=remedy) from error


def doubt(folder: Path) -> str:
    """Why another user could change files in this folder, now or later; empty if none can.

    All parent folders are checked, too; of a missing folder, only the parents that exist.
    """
    place, reachable = Path(os.path.realpath(folder)), True
    for each in (*reversed(place.parents), place):
        try:
            about = os.stat(each)
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as error:
            return f"{each} can't be checked: {error.strerror}"
        if not _is_ours(about):
            return f"{each} belongs to another user"
        is_shared = about.st_mode & stat.S_ISVTX and each != place  # as /tmp: others can't replace our files
        if reachable and about.st_mode & _WRITABLE_BY_OTHERS and not is_shared:
            return f"{each} can be changed by other users (chmod go-w)"
        reachable = reachable and bool(about.st_mode & _ENTERED_BY_OTHERS)
    return ""


def mkdir(path: Path, mode: int = 0o755) -> None:
    """Make a folder and its missing parents, without write permission for other users, whatever the umask is."""
    if not path.is_dir():
        mkdir(path.parent)
        path.mkdir(mode=mode, exist_ok=True)


def make_folder(path: Path, *, mode: int = 0o755) -> None:
    """As `mkdir`; an error if other users can change files in the folder."""
    mkdir(path, mode)
    if why := doubt(path):
        raise RightsError(why, where=str(path), remedy="let only its owner change it, or use another folder")


def is_out_of_reach(path: Path) -> bool:
    """Whether no other user can replace this file, now or later: no link and no writable folder in its path."""
    return path.resolve() == path and not doubt(path.parent)


def _is_ours(about: os.stat_result) -> bool:
    return about.st_uid in (0, os.geteuid())
