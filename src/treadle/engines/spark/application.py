"""A running Spark application as far as it is on this host: its driver, its executors, and the address of its UI.

It knows how to find them by process, name or address, with nothing changed in the application: the driver's UI names
its address in the name of the thread that listens there, and executors have the application's id in their arguments.
What runs inside is not its business.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from treadle.engines.spark.rest import Rest
from treadle.errors import ConfigError, EngineError, TargetGone, TreadleError
from treadle.observe import jvm
from treadle.observe.jvm import Jvm
from treadle.observe.threads import start_time

EXECUTOR = "CoarseGrainedExecutorBackend"
FIRST_UI_PORT, UI_PORTS = 4040, 6
"""Where Spark looks for a free port for its UI, unless told otherwise."""


class Process(NamedTuple):
    """A JVM of the application on this host."""

    pid: int
    start_time: int
    driver: bool


@dataclass(frozen=True)
class Application:
    """An application that was found. `processes` are those that were there at that moment."""

    id: str
    name: str
    ui: str
    processes: tuple[Process, ...]
    only: int | None = None
    """The one executor that was asked for; else all of them on this host belong to it."""

    @classmethod
    def find(cls, *, pid: int | None = None, name: str | None = None, ui: str | None = None) -> Application:
        """The application of this process (driver or executor), of this name, or with its UI at this address.

        `ui` may be given with `pid`, for an executor whose driver is on another host.
        """
        if (name is not None) + (pid is not None or ui is not None) != 1:
            raise ConfigError(
                "say which application", where="Spark", remedy="give a pid, a name, or the address of its UI"
            )
        if pid is not None:
            return _by_pid(pid, ui)
        if name is not None:
            return _by_name(name)
        assert ui is not None
        return _by_address(ui)

    @property
    def local(self) -> bool:
        """Whether its tasks run in the driver itself."""
        return self.id.startswith("local-")

    def look_again(self) -> tuple[Process, ...]:
        """Its processes as they are now: executors come and go. A scan of all processes, so not for every round."""
        alive = tuple(process for process in self.processes if _is_alive(process))
        if self.local or self.only is not None:
            return alive
        drivers = tuple(process for process in alive if process.driver)
        return drivers + tuple(_process(found) for found in _executors(self.id))


def _by_pid(pid: int, ui: str | None) -> Application:
    found = _java_of(pid)
    arguments = _options(found)
    if found.main.endswith(EXECUTOR):
        rest = Rest(ui) if ui else _driver_ui(arguments.get("--app-id", ""), arguments.get("--driver-url", ""))
        return _application(rest, arguments.get("--app-id", ""), (_process(found),), only=found.pid)
    names = _thread_names(found.pid)
    if "dag-scheduler-event-loop" not in names:
        raise EngineError(
            f"is a JVM, but runs no Spark application ({_short(found)})",
            where=f"process {pid}",
            remedy="name the driver's process, or an executor's",
        )
    rest = Rest(ui or _ui(names, f"process {pid}"))
    return _application(rest, "", (_process(found, driver=True),))


def _by_name(name: str) -> Application:
    found = [(application, rest, driver) for application, rest, driver in _drivers() if application[1] == name]
    if not found:
        others = sorted({application[1] for application, _, _ in _drivers()})
        known = f"running here: {', '.join(others)}" if others else "none runs here that this user can see"
        remedy = f"{known}; for a driver on another host, give the address of its UI"
        raise EngineError(f"no Spark application is called '{name}'", remedy=remedy)
    if len(found) > 1:
        which = ", ".join(f"process {driver.pid}" for _, _, driver in found)
        raise EngineError(f"{len(found)} applications are called '{name}': {which}", remedy="name one by its pid")
    (number, _), rest, driver = found[0]
    return _application(rest, number, (_process(driver, driver=True),))


def _by_address(ui: str) -> Application:
    rest = Rest(ui)
    number, _ = _shown(rest)
    processes = [_process(driver, driver=True) for (there, _), _, driver in _drivers() if there == number]
    application = _application(rest, number, tuple(processes))
    if not application.processes:
        remedy = "run this on the hosts where its driver or executors are"
        raise EngineError("no process of this application is on this host", where=ui, remedy=remedy)
    return application


def _application(rest: Rest, number: str, known: tuple[Process, ...], only: int | None = None) -> Application:
    shown, name = _shown(rest, number)
    found = Application(shown, name, rest.address, known, only)
    if found.local or only is not None:
        return found
    return Application(shown, name, rest.address, found.look_again())


def _shown(rest: Rest, number: str = "") -> tuple[str, str]:
    """The application that a UI shows, which has to be the one with this id if that is known."""
    shown = rest.applications()
    fitting = [each for each in shown if not number or each[0] == number]
    if len(fitting) != 1:
        what = f"shows {len(shown)} applications" + (f", none with the id {number}" if number else "")
        raise EngineError(what, where=f"Spark's UI at {rest.address}", remedy="give the address of the driver's own UI")
    return fitting[0]


def _ui(names: Sequence[str], where: str) -> str:
    """The address of the UI, from the name of the thread that listens there."""
    for name in names:
        if found := _ACCEPTOR.search(name):
            host = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1", "[::]": "127.0.0.1"}.get(found["host"], found["host"])
            return f"{'https' if found['ssl'] else 'http'}://{host}:{found['port']}"
    raise EngineError(
        "its UI is off (spark.ui.enabled=false), so its queries can't be told apart from outside",
        where=where,
        remedy="start it with spark.ui.enabled=true; spark.ui.port=0 takes any free port",
    )


_ACCEPTOR = re.compile(r"SparkUI-\d+-acceptor-.*\{(?P<ssl>SSL|ssl)?[^{}]*\}\{(?P<host>.+):(?P<port>\d+)\}")


def _drivers() -> list[tuple[tuple[str, str], Rest, Jvm]]:
    """((id, name), UI, process) of all drivers with a UI on this host that this user may look into."""
    found = []
    for each in jvm.find():
        with suppress(TreadleError):
            if not each.main.endswith(EXECUTOR) and _may_be_spark(each):
                names = _thread_names(each.pid)
                if "dag-scheduler-event-loop" in names:
                    rest = Rest(_ui(names, ""))
                    found.append((_shown(rest), rest, each))
    return found


def _may_be_spark(found: Jvm) -> bool:
    """Whether a look into it is worth it: Spark is named on its command line, or among the files that it has open."""
    words = " ".join((found.main, *found.options, *found.arguments)).lower()
    if "spark" in words:
        return not found.main.endswith((".master.Master", ".worker.Worker", ".history.HistoryServer"))
    with suppress(OSError):
        for file in os.scandir(f"/proc/{found.pid}/fd"):
            with suppress(OSError):
                if "spark-core" in os.readlink(file.path):
                    return True
    return False


def _driver_ui(number: str, driver: str) -> Rest:
    """The UI of an executor's driver: on this host by its process, on another at Spark's usual ports."""
    for (there, _), rest, _ in _drivers():
        if there == number:
            return rest
    host = driver.rpartition("@")[2].rpartition(":")[0]
    for port in range(FIRST_UI_PORT, FIRST_UI_PORT + UI_PORTS) if host else ():
        rest = Rest(f"http://{host}:{port}", timeout=1.0)
        with suppress(EngineError):
            if number in [there for there, _ in rest.applications()]:
                return Rest(rest.address)
    raise EngineError(
        f"the UI of its application {number} was not found",
        where=f"driver {driver}",
        remedy="give its address (ui=); if it is off, start the application with spark.ui.enabled=true",
    )


def _executors(number: str) -> list[Jvm]:
    return [
        found for found in jvm.find() if found.main.endswith(EXECUTOR) and _options(found).get("--app-id") == number
    ]


def _java_of(pid: int) -> Jvm:
    """The JVM of this process; for a Python application the one that PySpark started for it."""
    try:
        return jvm.look(pid)
    except TargetGone as error:
        raise EngineError("there is no such process", where=f"process {pid}", remedy="see `jps` or `ps`") from error
    except EngineError:
        children = [found for found in jvm.find() if _parent(found.pid) == pid and _may_be_spark(found)]
        if len(children) != 1:
            raise
        return children[0]


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(1024)
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split(None, 2)[1])


def _thread_names(pid: int) -> list[str]:
    return [thread.name for thread in jvm.dump(pid, frames=0)]


def _options(found: Jvm) -> dict[str, str]:
    """`--key value` pairs of the arguments."""
    words = found.arguments
    return {key: value for key, value in pairwise(words) if key.startswith("--")}


def _process(found: Jvm, *, driver: bool = False) -> Process:
    return Process(found.pid, found.start_time, driver)


def _is_alive(process: Process) -> bool:
    try:
        return start_time(process.pid, process.pid) == process.start_time
    except TargetGone:
        return False


def _short(found: Jvm) -> str:
    return found.main.rpartition("/")[2] or "java"
