"""Users: the owner of a process, the user that calls us, and a user by name or number.

The owner of a process is its real uid: the user that started it, also if it runs a set-user-ID program.
"""

from __future__ import annotations

import os
import pwd
from contextlib import suppress

from treadle.errors import ConfigError
from treadle.linux import process

User = str | int
"""A user's name or number."""


def owner(pid: int, start_time: int) -> int:
    """Return the real uid of the process with this id and start time (in clock ticks since boot)."""
    with process.folder(pid, start_time) as handle:
        status = process.read(handle, "status")
    return int(status[status.index(b"\nUid:") + 5 :].split(None, 1)[0])


def caller() -> int:
    """Return the uid of the user that calls us: under `sudo` the user that ran `sudo`, not root."""
    if os.geteuid() == 0 and (given := os.environ.get("SUDO_UID", "")).isdecimal():
        return int(given)
    return os.geteuid()


def number(user: User) -> int:
    """Return the uid of a user given by name or number."""
    if isinstance(user, int) and not isinstance(user, bool) and user >= 0:
        return user
    if isinstance(user, str):
        with suppress(KeyError):
            return pwd.getpwnam(user).pw_uid
        if user.isascii() and user.isdecimal():
            return int(user)
    raise ConfigError(f"there is no user {user!r} on this host", where="user", remedy="see `getent passwd`")


def name(uid: int) -> str:
    """Return the name of a user, or the number if the user has no name."""
    with suppress(KeyError, OverflowError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)
