"""Where journals are kept: folders that only their user can write to, and that last until the next boot.

What a journal says is done, as root if the user is root, so a folder that anybody else can write to is refused.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from treadle.errors import RightsError

NAME = "treadle"


def journal_folders() -> list[Path]:
    """All folders where journals of this user may be, the best for new ones first.

    `$XDG_RUNTIME_DIR` is the last one: it is removed when the user logs out, while processes may run on.
    """
    folders: list[Path] = []
    if named := os.environ.get("TREADLE_STATE"):
        folders.append(Path(named))
    if os.geteuid() == 0:
        folders.append(Path("/run") / NAME)
    if (state := _state_home()) is not None:
        folders.append(state / NAME)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_ours(Path(runtime)):  # after sudo it may be that of somebody else
        folders.append(Path(runtime) / NAME)
    return list(dict.fromkeys(folders))


def folders_for_new_journals() -> list[Path]:
    """The folders to try for a new journal, in this order; only the one that the user has named, if there is one."""
    return journal_folders()[: 1 if os.environ.get("TREADLE_STATE") else None]


def make_private(folder: Path) -> None:
    """Make the folder, and be sure that nobody else can write there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        remedy = "set TREADLE_STATE to a folder of yours"
        raise RightsError(f"can't be made: {error}", where=f"folder {folder}", remedy=remedy) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        remedy = f"run 'chmod 700 {folder}', or set TREADLE_STATE to a folder of yours"
        raise RightsError("is not a folder that only you can write to", where=str(folder), remedy=remedy)


def _state_home() -> Path | None:
    """`$XDG_STATE_HOME`, else ~/.local/state; None for a user that has no home. A relative path counts as none."""
    named = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(named) and _is_ours(Path(named)):
        return Path(named)
    try:
        return Path("~/.local/state").expanduser()
    except RuntimeError:
        return None


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return False
