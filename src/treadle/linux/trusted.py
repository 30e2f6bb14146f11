"""Files that nobody but this user or root could have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from treadle.errors import RightsError

_WRITABLE_BY_OTHERS, _ENTERED_BY_OTHERS = 0o022, 0o011


def read(path: Path) -> bytes:
    """The contents of an ordinary file of ours or of root, that nobody else can write; an error for any other."""
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


def belongs_to_us(path: Path) -> bool:
    """Whether a folder is ours or root's; of one that does not exist yet, the nearest above it."""
    for place in (path, *path.parents):
        try:
            return _is_ours(os.stat(place))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            return False
    return False


def is_out_of_reach(path: Path) -> bool:
    """Whether nobody else can put another file in this place, now or later: all folders on the way are closed."""
    if path.resolve() != path:
        return False  # a link could lead elsewhere later
    for place in reversed(path.parents):
        about = os.stat(place)
        if not _is_ours(about):
            return False
        if not about.st_mode & _ENTERED_BY_OTHERS:
            return True  # whatever is below, nobody else comes there
        if about.st_mode & _WRITABLE_BY_OTHERS and not about.st_mode & stat.S_ISVTX:
            return False
    return True


def _is_ours(about: os.stat_result) -> bool:
    return about.st_uid in (0, os.geteuid())
