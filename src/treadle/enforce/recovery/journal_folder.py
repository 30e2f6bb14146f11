"""Where journals are kept: folders that only their user can write to, and that last until the next boot.

A restore does what a journal says, as root if the user is root, so a folder that another user can write to is refused.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from treadle.errors import RightsError
from treadle.linux.files.runtime_folder import checked, private_folder

NAME = "treadle"


def journal_folders() -> list[Path]:
    """Return all folders where journals of this user may be, the best for new journals first.

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
    if runtime and _is_ours(Path(runtime)):  # after sudo it may be that of another user
        folders.append(Path(runtime) / NAME)
    return list(dict.fromkeys(folders))


def folders_for_new_journals() -> list[Path]:
    """Return the folders to try for a new journal, in this order; only `$TREADLE_STATE` if that is set."""
    return journal_folders()[: 1 if os.environ.get("TREADLE_STATE") else None]


def make_private(folder: Path) -> None:
    """Make the folder; an error if another user can write to it."""
    try:
        private_folder(folder, readable=True)
    except RightsError as error:
        remedy = f"{error.remedy}, or set TREADLE_STATE to a folder of yours"
        raise RightsError(error.message, where=error.where, remedy=remedy) from error


def is_private(folder: Path) -> bool:
    """Return whether the folder exists and no other user can write to it."""
    try:
        return checked(folder, readable=True) == folder
    except (OSError, RightsError):
        return False


def _state_home() -> Path | None:
    """Return `$XDG_STATE_HOME`, else .local/state in the home; None for a user without a home.

    After `sudo -E` the environment names folders of another user: those are ignored, and so is a relative path.
    """
    named = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(named) and _is_ours(Path(named)):
        return Path(named)
    home = os.environ.get("HOME", "")
    if not (os.path.isabs(home) and _is_ours(Path(home))):
        try:
            home = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            return None
    return Path(home) / ".local/state"


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return False
