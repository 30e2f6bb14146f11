"""A running Spark application as far as it is on this host: its driver, its executors, and the address of its UI.

It is found by process, name or address, with nothing changed in it: the thread that listens for the driver's UI has the
address in its name, and executors have the application's id in their arguments. The application's name is read from an
agent, if one may be loaded, or from the UI. What runs inside is not known here.

Any user can give a process the name of another's application, or the arguments of its executor. So names and patterns
select applications of one user only, and an executor belongs to an application only if both have the same owner.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from treadle import jvm
from treadle.engines.spark import jvms
from treadle.engines.spark.agent.agents import identify
from treadle.engines.spark.jvms import EXECUTOR
from treadle.engines.spark.queries.rest import Rest
from treadle.errors import ConfigError, EngineError, TargetGone, TreadleError
from treadle.jvm import Jvm
from treadle.linux import stat, users
from treadle.linux.sockets import listens
from treadle.linux.thread_times import start_time

LOCAL = "local-process-"
FIRST_UI_PORT, UI_PORTS = 4040, 6
"""The first port that Spark tries for its UI by default, and the number of ports that are searched for a UI."""


Known = tuple[int, int]
"""A process, as pid and start time."""


class Process(NamedTuple):
    """A JVM of the application on this host."""

    pid: int
    start_time: int
    driver: bool


@dataclass(frozen=True)
class Application:
    """An application that was found, with its `processes` at that moment."""

    id: str
    """Spark's id of the application. In local mode, where that means nothing outside of the driver, an id made of the
    pid."""
    name: str
    ui: str
    processes: tuple[Process, ...]
    only: int | None = None
    """The pid of the one executor that was asked for; None: all executors on this host."""
    owner: int | None = None
    """The uid of the driver: executors of other users are left alone. None: all are left alone."""

    @classmethod
    def find(
        cls,
        *,
        pid: int | None = None,
        name: str | None = None,
        ui: str | None = None,
        agent: bool = False,
        user: int | None = None,
    ) -> Application:
        """Find an application by the pid of its driver or executor, by its name, or by the address of its UI.

        `ui` may be given with `pid`, for an executor with a driver on another host. With `agent`, `identified` reads
        the name of an application in local mode, and name and id of an application without a UI, from Treadle's agent,
        since the UI's first answer is slow. Nothing is loaded here. `user` is the uid of the owner, by default the
        caller's. A pid selects a process of any owner; so does the address of a UI at which the process itself listens.
        """
        if (name is not None) + (pid is not None or ui is not None) != 1:
            raise ConfigError(
                "say which application", where="Spark", remedy="give a pid, a name, or the address of its UI"
            )
        if pid is not None:
            return _by_pid(pid, ui, agent=agent)
        if name is not None:
            return _by_name(name, _meant(user))
        assert ui is not None
        return _by_address(ui, _meant(user))

    @classmethod
    def find_all(cls, pattern: str, *, user: int | None = None) -> list[Application]:
        """Find all applications of one user with a name that fits a pattern such as `shop-*`; an error if none does."""
        drivers = _titled(_meant(user))
        found = [driver for title, driver in drivers if fnmatchcase(title, pattern)]
        if not found:
            raise _nobody(f"has a name that fits '{pattern}'", _meant(user), [title for title, _ in drivers])
        return [_application(driver) for driver in found]

    def identified(self) -> Application:
        """Return a copy with the id and name that `find` has left empty, read by Treadle's agent in the driver.

        By this id, `look_again` finds the executors that an application without a UI has on this host.
        """
        if self.name:
            return self
        driver = self.processes[0]
        try:
            number, name = identify(driver.pid)
        except (TreadleError, OSError) as error:
            if not self.ui:
                raise _off(f"process {driver.pid}", f"and no agent can be loaded ({error})") from error
            number, name = "", Rest(self.ui).title()
        return replace(self, id=self.id or number, name=name)

    @property
    def local(self) -> bool:
        """Whether its tasks run in the driver itself."""
        return self.id.startswith(LOCAL)

    def may_return(self) -> bool:
        """Whether executors may start on this host again: the driver is on another host and its UI still answers.

        This asks the UI whether it shows the application, which is too slow for a round.
        """
        if self.local or self.only is not None or any(process.driver for process in self.processes):
            return False
        try:
            return self.id in [number for number, _ in Rest(self.ui).applications()]
        except EngineError:
            return False

    def look_again(self) -> tuple[Process, ...]:
        """Return the current processes: executors start and end. Not for every round: this scans all processes."""
        alive = tuple(process for process in self.processes if is_alive(process))
        if self.local or self.only is not None:
            return alive
        drivers = tuple(process for process in alive if process.driver)
        return drivers + tuple(_process(found) for found in jvms.executors(self.id, self.owner))


class NewApplicationFinder:
    """Finds new applications of one user whose names fit patterns."""

    def __init__(self, patterns: Sequence[str], user: int | None = None) -> None:
        self._patterns = tuple(patterns)
        self._user = _meant(user)
        self._known: set[Known] = set()

    def look(self) -> list[Application]:
        """Return the applications that were not found by an earlier call. Each call scans all processes."""
        found = []
        for title, driver in _titled(self._user, self._known):
            with suppress(EngineError):  # the next call may succeed
                if any(fnmatchcase(title, pattern) for pattern in self._patterns):
                    found.append(_application(driver))
                self._known.add((driver.jvm.pid, driver.jvm.start_time))
        return found


def _by_pid(pid: int, ui: str | None, *, agent: bool) -> Application:
    found = _java_of(pid)
    if found.main.endswith(EXECUTOR):
        arguments = jvms.options(found)
        number = arguments.get("--app-id", "")
        rest = Rest(ui) if ui else _driver_ui(number, arguments.get("--driver-url", ""), jvms.owner(found))
        return Application(*_shown(rest, number), rest.address, (_process(found),), only=found.pid)
    driver = _driver(found, agent=agent)
    if driver is None:
        raise EngineError(
            f"is a JVM, but runs no Spark application ({_short(found)})",
            where=f"process {pid}",
            remedy="name the driver's process, or an executor's",
        )
    return _application(driver._replace(rest=Rest(ui)) if ui else driver, agent=agent)


def _by_name(name: str, user: int) -> Application:
    drivers = _titled(user)
    found = [driver for title, driver in drivers if title == name]
    if not found:
        raise _nobody(f"is called '{name}'", user, [title for title, _ in drivers])
    if len(found) > 1:
        which = ", ".join(f"process {driver.jvm.pid}" for driver in found)
        raise EngineError(f"{len(found)} applications are called '{name}': {which}", remedy="name one by its pid")
    return _application(found[0])


def _titled(user: int, known: Collection[Known] = ()) -> list[tuple[str, _Driver]]:
    """Return (name of the application, driver) for each driver of one user on this host, except `known` ones."""
    drivers: list[tuple[str, _Driver]] = []
    for driver in _drivers(user, known):
        with suppress(EngineError):  # another driver's UI may not answer
            drivers.append((driver.rest.title(), driver))
    return drivers


def _nobody(what: str, user: int, others: Iterable[str]) -> EngineError:
    """Make an error that names this user's applications, and other users with JVMs that may be drivers."""
    shown, whose = ", ".join(sorted(set(others))), users.name(user)
    known = f"user {whose} runs here: {shown}" if shown else f"user {whose} runs none here"
    if owners := [each for each in jvms.owners(jvms.like_drivers()) if each != whose]:
        known += f"; other users with Spark here: {', '.join(owners)}, selected by --user {owners[0]} (user=)"
    remedy = f"{known}; if its UI is off, give its pid; if it runs on another host, give the address of its UI"
    return EngineError(f"no Spark application {what}", remedy=remedy)


def _by_address(ui: str, user: int) -> Application:
    rest = Rest(ui)
    number, name = _shown(rest)
    for driver in _drivers():
        with suppress(EngineError):
            pid = driver.jvm.pid
            # Any process can have a thread that names this port: a process of another user must itself listen there.
            ours = driver.rest.port == rest.port and (jvms.owner(driver.jvm) == user or listens(pid, rest.port))
            if ours and _shown(driver.rest)[0] == number:
                return _application(driver)
    executors = tuple(map(_process, jvms.executors(number, user)))
    if not executors:
        remedy = "run treadle on the hosts of its driver or executors"
        if owners := jvms.owners(jvms.like_executors(number)):
            remedy = f"{', '.join(owners)} has processes that look like its executors: add --user {owners[0]} (user=)"
        what = f"no process of this application is on this host for user {users.name(user)}"
        raise EngineError(what, where=ui, remedy=remedy)
    return Application(number, name, rest.address, executors, owner=user)


class _Driver(NamedTuple):
    """A driver on this host."""

    jvm: Jvm
    rest: Rest
    local: bool
    """Whether tasks run in it too."""


def _application(driver: _Driver, *, agent: bool = False) -> Application:
    process, owner = _process(driver.jvm, driver=True), jvms.owner(driver.jvm)
    number, name = _identity(driver, agent=agent)
    if driver.local:
        return Application(f"{LOCAL}{process.pid}", name, driver.rest.address, (process,), owner=owner)
    found = Application(number, name, driver.rest.address, (process,), owner=owner)
    return replace(found, processes=found.look_again())


def _identity(driver: _Driver, *, agent: bool) -> tuple[str, str]:
    """Return id and name; each is empty if `identified` is to read it. In local mode the id is not needed.

    On a cluster, executors are found by the id. So the UI, if it is on, is asked for it, which takes 1.5 s of CPU.
    """
    if agent and (driver.local or not driver.rest.address):
        return "", ""
    return ("", driver.rest.title()) if driver.local else _shown(driver.rest)


def _shown(rest: Rest, number: str = "") -> tuple[str, str]:
    """Return id and name of the application that a UI shows: the only one, or the one with this id."""
    shown = rest.applications()
    fitting = [each for each in shown if not number or each[0] == number]
    if len(fitting) != 1:
        what = f"shows {len(shown)} applications" + (f", none with the id {number}" if number else "")
        raise EngineError(what, where=f"Spark's UI at {rest.address}", remedy="give the address of the driver's own UI")
    return fitting[0]


def _ui(names: Sequence[str]) -> str:
    """Return the address of the UI, from the name of the thread that listens there; empty if the UI is off."""
    for name in names:
        if found := _ACCEPTOR.search(name):
            host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1", "[::]": "127.0.0.1"}.get(found["host"], found["host"])
            return f"{'https' if found['ssl'] else 'http'}://{host}:{found['port']}"
    return ""


def _off(where: str, why: str) -> EngineError:
    return EngineError(
        f"its UI is off (spark.ui.enabled=false), {why}, so its queries can't be distinguished",
        where=where,
        remedy="start it with spark.ui.enabled=true; spark.ui.port=0 takes any free port",
    )


_ACCEPTOR = re.compile(r"SparkUI-\d+-acceptor-[^{}]*\{(?P<ssl>SSL|ssl)?[^{}]*\}\{(?P<host>[^{}]+):(?P<port>\d{1,5})\}")


def _driver(found: Jvm, *, agent: bool = False) -> _Driver | None:
    """Return the driver in this JVM; None if there is none. Without an agent, the driver's UI must be on."""
    names = [thread.name for thread in jvm.dump(found.pid, frames=0)]
    if "dag-scheduler-event-loop" not in names:
        return None
    ui = _ui(names)
    if not ui and not agent:
        raise _off(f"process {found.pid}", "and no agent is loaded (--agent)")
    return _Driver(found, Rest(ui), "executor-heartbeater" in names)


def _drivers(user: int | None = None, known: Collection[Known] = ()) -> list[_Driver]:
    """Return the drivers with a UI on this host, except `known` ones: of one user, or all that we may attach to."""
    found = []
    for each in jvm.find():
        with suppress(TreadleError):
            if (each.pid, each.start_time) in known or each.main.endswith(EXECUTOR):
                continue
            if user is not None and jvms.owner(each) != user:
                continue
            if jvms.may_be_spark(each) and (driver := _driver(each)):
                found.append(driver)
    return found


def _driver_ui(number: str, address: str, user: int | None) -> Rest:
    """Find the UI of an executor's driver: on this host by its process, on another host at Spark's usual ports."""
    for driver in _drivers(user) if user is not None else ():
        with suppress(EngineError):
            if not driver.local and _shown(driver.rest)[0] == number:
                return driver.rest
    host = address.rpartition("@")[2].rpartition(":")[0]
    for port in range(FIRST_UI_PORT, FIRST_UI_PORT + UI_PORTS) if host else ():
        rest = Rest(f"http://{host}:{port}", timeout=1.0)
        with suppress(EngineError):
            if number in [there for there, _ in rest.applications()]:
                return Rest(rest.address)
    raise EngineError(
        f"the UI of its application {number} was not found",
        where=f"driver {address}",
        remedy="give its address (ui=); if it is off, start the application with spark.ui.enabled=true",
    )


def _meant(user: int | None) -> int:
    return users.caller() if user is None else user


def _java_of(pid: int) -> Jvm:
    """The JVM of this process; for a Python application the one that PySpark started for it."""
    try:
        return jvm.look(pid)
    except TargetGone as error:
        raise EngineError("there is no such process", where=f"process {pid}", remedy="see `jps` or `ps`") from error
    except EngineError:
        children = [found for found in jvm.find() if _parent(found.pid) == pid and jvms.may_be_spark(found)]
        if len(children) != 1:
            raise
        return children[0]


def _parent(pid: int) -> int:
    try:
        return int(stat.read(pid, last=stat.PARENT)[stat.PARENT])
    except OSError:
        return 0


def _process(found: Jvm, *, driver: bool = False) -> Process:
    return Process(found.pid, found.start_time, driver)


def is_alive(process: Process) -> bool:
    """Whether the process still runs, and its pid was not reused."""
    try:
        return start_time(process.pid, process.pid) == process.start_time
    except TargetGone:
        return False


def _short(found: Jvm) -> str:
    return found.main.rpartition("/")[2] or "java"
