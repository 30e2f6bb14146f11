"""Checks that a process can be attached to: its owner, its kind of JVM, and whether it handles the signal."""

from __future__ import annotations

import os

from treadle.errors import EngineError, RightsError, TargetGone
from treadle.jvm.process import Facts, given, is_ending, libraries


def check_rights(facts: Facts) -> None:
    """Raise an error unless the JVM accepts our user and group."""
    if os.geteuid() == 0:
        return
    if facts.uid != os.geteuid():
        remedy = f"run as {facts.user} or as root" if facts.uid else "run as root"
        raise RightsError(f"belongs to another user, {facts.user}", where=facts.where, remedy=remedy)
    if facts.gid != os.getegid():
        remedy = "run with that group id, or as root"
        raise RightsError(
            f"runs with another group id ({facts.gid}), so it would not answer", where=facts.where, remedy=remedy
        )


def check_hotspot(facts: Facts) -> None:
    """Raise an error unless the process is a HotSpot JVM."""
    try:
        has_jvm, has_j9 = libraries(facts.pid)
    except PermissionError as error:
        raise locked(facts) from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise TargetGone("has ended", where=facts.where) from error
    if not has_jvm and is_ending(facts.pid):  # an ending process loses its memory first
        raise TargetGone("has ended", where=facts.where)
    if not has_jvm:
        raise EngineError("is not a JVM", where=facts.where, remedy="name the process that runs Java")
    if has_j9:
        raise EngineError("is an OpenJ9 JVM", where=facts.where, remedy="run the application on a HotSpot JVM")


def check_willing(facts: Facts) -> None:
    """Raise an error unless the JVM would open its socket on SIGQUIT. Call this before the signal is sent."""
    if facts.stopped:
        raise EngineError("is stopped", where=facts.where, remedy=f"let it go on: kill -CONT {facts.pid}")
    switches = [word for word in given(facts.pid) if word.endswith("DisableAttachMechanism")]
    if switches and switches[-1] == "-XX:+DisableAttachMechanism":
        remedy = "start it without -XX:+DisableAttachMechanism"
        raise EngineError("does not allow attaching", where=facts.where, remedy=remedy)
    if not facts.catches_quit:
        remedy = "if it has just been started, try again; else start it without -Xrs"
        raise EngineError("does not handle SIGQUIT, which attaching needs", where=facts.where, remedy=remedy)


def locked(facts: Facts) -> RightsError:
    """The error for a process that only root may inspect."""
    return RightsError("can't be inspected by this user", where=facts.where, remedy="run as root")
