"""The position of each consumer of an embedded channel, in a file that consumer and writer both read.

Rows before the position of every consumer may be deleted. A suspended consumer holds no rows; its position is
remembered, so that it can go on when it is registered again.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from pathlib import Path

from treadle.errors import ConfigError, EngineError
from treadle.pipelines.channels.view import Folder, View

log = logging.getLogger("treadle.pipelines")
TMP = ".tmp-"
_LEFT = ".left-"
"""Prefix of the file with the position of a consumer that was suspended."""
_SINCE = ".since-"
"""Prefix of the file with the first row that was there when a suspended consumer was registered again."""


def positions(folder: Folder) -> dict[str, int]:
    """The position of each registered consumer: the rows before it are done."""
    base = Path(folder) / "positions"
    found = {}
    for name in sorted(os.listdir(base)) if base.is_dir() else ():
        if name.startswith("."):
            continue
        if (position := _number(base / name)) is not None:
            found[name] = position
    return found


def set_position(folder: Folder, name: str, position: int) -> None:
    """Record that the consumer is done with all rows before `position`. Only the consumer's owner may call this."""
    if position < 0:
        raise ConfigError(
            f"position of '{name}' can't be {position}", where=str(folder), remedy="rows are counted from 0"
        )
    path = _position_file(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, str(position))


def register_consumer(folder: Folder, name: str) -> int:
    """Register a consumer: rows that it has not read are kept. Return its position; a new one begins at the start.

    One that was suspended goes on with the first row that is left of those that it has not read.
    """
    known = positions(folder).get(name)
    left = _position_file(folder, name).with_name(_LEFT + name)
    before = _number(left)
    if known is not None and before is None:
        return known
    set_position(folder, name, 0)  # stops further deletion first: only then does the start stay where it is
    start = View(folder).start
    if before is not None and before < start:
        replace(left.with_name(_SINCE + name), str(start))
        log.warning("'%s' goes on at row %d of %s: rows from %d on are gone", name, start, folder, before)
    if start:
        set_position(folder, name, start)
    left.unlink(missing_ok=True)  # last: if this is interrupted, all of it is done again
    return start


def suspend_consumer(folder: Folder, name: str) -> None:
    """Keep no more rows for a consumer, but remember its position for when it is registered again."""
    file = _position_file(folder, name)
    with suppress(FileNotFoundError):
        os.replace(file, file.with_name(_LEFT + name))


def first_row(folder: Folder, name: str) -> int:
    """The first row that exists for a consumer: it reads on from there if it had read less when it was suspended."""
    return _number(_position_file(folder, name).with_name(_SINCE + name)) or 0


def remove_consumer(folder: Folder, name: str) -> None:
    """Remove a consumer, so that the channel no longer waits for it; it need not be registered."""
    _position_file(folder, name).unlink(missing_ok=True)


def _position_file(folder: Folder, name: str) -> Path:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ConfigError(f"'{name}' can't be a consumer's name", where=str(folder), remedy="use letters and digits")
    return Path(folder) / "positions" / name


def replace(path: Path, text: str) -> None:
    """Replace a file's text: whenever the process ends, the file has the old text or the new one."""
    tmp = path.with_name(TMP + path.name)
    try:
        tmp.write_text(text)
        os.rename(tmp, path)
    except OSError as error:
        with suppress(OSError):
            tmp.unlink()
        raise unwritten(path, error) from error


def unwritten(path: Path, error: OSError) -> EngineError:
    """The error for a file that could not be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    what = "there is no space left" if full else str(error)
    remedy = "make space, then try again" if full else "see why the folder can't be written to"
    return EngineError(f"could not be written, and nothing has changed: {what}", where=str(path), remedy=remedy)


def _number(file: Path) -> int | None:
    """The number in a file, None if there is no such file."""
    with suppress(FileNotFoundError):
        text = file.read_text(errors="replace").strip()
        if text.isascii() and text.isdecimal():
            return int(text)
        raise EngineError(
            f"'{text[:40]}' is not a row number", where=str(file), remedy="write the right number, or delete the file"
        )
    return None
