"""The JVMs of Spark on this host, as seen from outside: by their command line, their open files and their owner.

Any user can write any command line, so it proves nothing: an executor is taken for an application's only if both have
the same owner.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise

from treadle import jvm
from treadle.errors import TargetGone
from treadle.jvm import Jvm
from treadle.linux import users

log = logging.getLogger("treadle.engines.spark")

EXECUTOR = "CoarseGrainedExecutorBackend"


def executors(number: str, user: int | None) -> list[Jvm]:
    """Return the executors of an application with this owner. Other users' processes may only look like executors."""
    found = []
    for each in like_executors(number):
        uid = owner(each)
        if uid is not None and uid == user:
            found.append(each)
        elif uid is not None and user is not None:
            _leave_alone(number, users.name(user), users.name(uid))
    return found


def like_executors(number: str) -> list[Jvm]:
    """The processes of any user that have the arguments of an executor of this application."""
    return [each for each in jvm.find() if each.main.endswith(EXECUTOR) and options(each).get("--app-id") == number]


@lru_cache(maxsize=256)
def _leave_alone(number: str, user: str, other: str) -> None:
    """Log that another user's executors are left alone: once (results are cached), not at every scan."""
    log.warning(
        "processes of user %s look like executors of %s, which belongs to %s: they are skipped (add one by --pid)",
        other,
        number,
        user,
    )


def owner(found: Jvm) -> int | None:
    """The uid of a JVM's owner; None if it has ended."""
    try:
        return users.owner(found.pid, found.start_time)
    except TargetGone:
        return None


def owners(found: Iterable[Jvm]) -> list[str]:
    """Return the names of the owners of these JVMs."""
    return sorted({users.name(uid) for each in found if (uid := owner(each)) is not None})


def like_drivers() -> list[Jvm]:
    """Return the processes of any user that may be drivers, without attaching to their JVMs."""
    return [each for each in jvm.find() if not each.main.endswith(EXECUTOR) and may_be_spark(each)]


def may_be_spark(found: Jvm) -> bool:
    """True if attaching is worth it: Spark is named on the command line, or among the files that the JVM has open."""
    words = " ".join((found.main, *found.options, *found.arguments)).lower()
    if "spark" in words:
        return not found.main.endswith((".master.Master", ".worker.Worker", ".history.HistoryServer"))
    with suppress(OSError), os.scandir(f"/proc/{found.pid}/fd") as files:
        for file in files:
            with suppress(OSError):
                if "spark-core" in os.readlink(file.path):
                    return True
    return False


def options(found: Jvm) -> dict[str, str]:
    """Return the `--key value` pairs of a JVM's arguments."""
    words = found.arguments
    return {key: value for key, value in pairwise(words) if key.startswith("--")}
