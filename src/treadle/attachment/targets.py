"""Finds the running Spark applications that a user names: by process id, name or pattern, UI address, or session.

It also claims their processes. An application that is named twice is found once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from treadle.engines.spark.application import Application, Process, is_alive
from treadle.errors import ConfigError, EngineError, TargetGone
from treadle.linux.process import claim

log = logging.getLogger("treadle.attach")


@dataclass(frozen=True)
class Name:
    """The name of an application, or a pattern of names, even if it looks like an address."""

    text: str

    @property
    def is_pattern(self) -> bool:
        return any(sign in self.text for sign in "*?[")


@dataclass(frozen=True)
class Ui:
    """The address of a UI, even if it looks like a name."""

    address: str


Target = int | str | Name | Ui | Application | Any
"""`Any` is a SparkSession of this very process. Text with `://` or a port at its end is an address, other text is a
name, also if it is a number: only an int is a process id."""


def find(targets: Target | Sequence[Target], *, agent: bool = False, user: int | None = None) -> dict[str, Application]:
    """Return the applications by unique names; with `agent` some have no name yet (`Application.identified`).

    Names and patterns mean applications of this user, by default of the calling user.
    """
    several = _explicit(targets)
    if not several:
        raise ConfigError("no application is named", remedy="give a pid, a name or the address of a UI")
    return named(found for target in several for found in _applications(target, agent=agent, user=user))


def patterns(targets: Target | Sequence[Target]) -> tuple[str, ...]:
    """Return the targets that are patterns of names, which also mean applications that start later."""
    return tuple(each.text for each in _explicit(targets) if isinstance(each, Name) and each.is_pattern)


def named(applications: Iterable[Application]) -> dict[str, Application]:
    """Return the applications by name; if several share one, each gets its process id appended."""
    found = {(each.id or _first(each), each.only): each for each in applications}
    names = [each.name for each in found.values()]
    return {
        each.name if names.count(each.name) == 1 and each.only is None else f"{each.name}@{_first(each)}": each
        for each in found.values()
    }


class Claims:
    """Keeps other Treadle processes from scheduling the same processes: each would undo the other's changes.

    A claim ends with the process that holds it, however that ends.
    """

    def __init__(self) -> None:
        self._held: dict[Process, int] = {}
        self._refused: set[Process] = set()

    def take(self, applications: Iterable[Application]) -> None:
        """Claim the processes of all these applications, or none. A process that has ended meanwhile needs no claim."""
        taken: dict[Process, int] = {}
        try:
            for application in applications:
                for process in application.processes:
                    with suppress(TargetGone):
                        taken[process] = _claimed(process, application.name)
        except BaseException:
            for handle in taken.values():
                os.close(handle)
            raise
        self._held.update(taken)

    def admit(self, process: Process) -> bool:
        """Return whether a process, such as a new executor, is ours; claim it if no other process has claimed it."""
        if process in self._held:
            return True
        for gone in [each for each in self._held if not is_alive(each)]:
            os.close(self._held.pop(gone))
        try:
            handle = claim(process.pid, process.start_time)
        except TargetGone:
            return False
        if handle is None:
            if process not in self._refused:
                log.warning("process %d is skipped: another treadle process is attached to it", process.pid)
            self._refused.add(process)
            return False
        self._held[process] = handle
        return True

    def drop(self, processes: Iterable[Process]) -> None:
        """Give up the claims on these processes."""
        for process in processes:
            if process in self._held:
                os.close(self._held.pop(process))

    def release(self) -> None:
        while self._held:
            os.close(self._held.popitem()[1])


def _claimed(process: Process, name: str) -> int:
    handle = claim(process.pid, process.start_time)
    if handle is None:
        where = f"process {process.pid}" + (f" of '{name}'" if name else "")
        raise EngineError("another treadle process is attached to it", where=where, remedy="stop that one first")
    return handle


def _first(application: Application) -> int:
    return application.processes[0].pid if application.processes else 0


def _explicit(targets: Target | Sequence[Target]) -> list[Target]:
    """Return all targets, with text turned into the `Name` or `Ui` that it looks like."""
    several = targets if isinstance(targets, list | tuple) else [targets]
    return [_taken(each) if isinstance(each, str) else each for each in several]


def _taken(text: str) -> Name | Ui:
    before, colon, port = text.rpartition(":")
    return Ui(text) if "://" in text or (before and colon and port.isdecimal()) else Name(text)


def _applications(target: Target, *, agent: bool, user: int | None) -> list[Application]:
    if isinstance(target, Name) and target.is_pattern:
        return Application.find_all(target.text, user=user)
    return [_application(target, agent=agent, user=user)]


def _application(target: Target, *, agent: bool, user: int | None) -> Application:
    if isinstance(target, Application):
        return target
    if isinstance(target, bool) or target is None:
        raise ConfigError(
            f"{target!r} is not an application", where="attach", remedy="give a pid, a name or a UI address"
        )
    if isinstance(target, int):
        return Application.find(pid=target, agent=agent)
    if isinstance(target, Ui):
        return Application.find(ui=target.address, user=user)
    if isinstance(target, Name):
        return Application.find(name=target.text, user=user)
    return _of_session(target, agent=agent)


def _of_session(spark: Any, *, agent: bool) -> Application:
    context = getattr(spark, "sparkContext", spark)
    try:
        pid = int(context._jvm.java.lang.ProcessHandle.current().pid())
    except Exception as error:
        remedy = "give a pid, a name, the address of a UI, or a SparkSession that runs here (not Spark Connect)"
        raise ConfigError(f"{spark!r} is not an application", where="attach", remedy=remedy) from error
    return Application.find(pid=pid, agent=agent)
