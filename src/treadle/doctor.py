"""Checks what `treadle run` and `treadle attach` need on this machine: what is there, what is missing, and what to do.

It changes only Treadle's own cache, into which it compiles Treadle's Java classes if it can. Features of the kernel are
tried on threads and cgroups that are made for the check.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from treadle import config, jars
from treadle import jvm as running
from treadle.control import control_socket
from treadle.enforce import kernel
from treadle.enforce.gate.slots import usable_cores
from treadle.enforce.recovery.leftovers import leftovers
from treadle.errors import TreadleError
from treadle.linux.pressure import PSI
from treadle.pipelines.spark import jvm
from treadle.pipelines.spark.session import Setting, settings

OLDEST_PYTHON = (3, 11)
SPARK = "4.3."
"""The first digits of the PySpark versions with which Treadle is tested."""

State = Literal["ok", "missing", "note"]


@dataclass(frozen=True)
class Check:
    """The result of one check. If `needed`, `treadle run` can't work without it. For a `note` nothing must be done."""

    name: str
    state: State
    found: str
    remedy: str = ""
    needed: bool = False


@dataclass(frozen=True)
class Report:
    """The results of all checks."""

    checks: tuple[Check, ...]
    settings: tuple[Setting, ...]
    """The Spark settings of a Treadle session, with reasons; empty if they are unknown because something is missing."""
    pipelines: tuple[str, ...]
    """The names of the pipelines that run now."""

    @property
    def missing(self) -> tuple[Check, ...]:
        """The failed checks that keep `treadle run` from working."""
        return tuple(check for check in self.checks if check.needed and check.state == "missing")


def examine() -> Report:
    """Run all checks."""
    checks = [_python(), *_java(), _spark(), _pandas(), _package("pyarrow", needed=True), _classes()]
    checks += [_package("protobuf", why="for transformWithState"), _package("confluent-kafka", "kafka", "for topics")]
    checks += [_bundle(name) for name in jars.names()]
    checks += [_configuration(), _cores(), _psi(), *_kernel(), _jvms(), _leftovers()]
    names = tuple(control_socket.name_of(path) for path in control_socket.find())
    return Report(tuple(checks), _settings(), names)


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info >= OLDEST_PYTHON:
        return Check("Python", "ok", found, needed=True)
    wanted = ".".join(map(str, OLDEST_PYTHON))
    return Check("Python", "missing", found, f"use Python {wanted} or newer", needed=True)


def _java() -> list[Check]:
    """Check the Java runtime, and the compiler beside it."""
    try:
        program = jars.java()
    except TreadleError as error:
        return [Check("Java", "missing", _said(error), error.remedy, needed=True)]
    runtime = Check("Java", "ok", program, needed=True)
    compiler = Path(program).resolve().with_name("javac")
    if compiler.exists():
        return [runtime, Check("Java compiler", "ok", str(compiler), needed=True)]
    remedy = f"install a whole JDK {jars.OLDEST_JAVA} (Debian: openjdk-{jars.OLDEST_JAVA}-jdk-headless)"
    return [runtime, Check("Java compiler", "missing", f"no javac beside {program}", remedy, needed=True)]


def _spark() -> Check:
    check = _package("pyspark", needed=True)
    if check.state == "ok" and not check.found.startswith(SPARK):
        return Check("pyspark", "note", check.found, f"Treadle is tested with {SPARK}x: pip install 'treadle[spark]'")
    return check


def _pandas() -> Check:
    check = _package("pandas", needed=True)
    if check.state == "ok" and int(check.found.partition(".")[0]) >= 3:
        return Check("pandas", "missing", check.found, "this PySpark needs an older one: pip install 'pandas<3'", True)
    return check


def _package(name: str, extra: str = "spark", why: str = "", *, needed: bool = False) -> Check:
    try:
        return Check(name, "ok", metadata.version(name), needed=needed)
    except metadata.PackageNotFoundError:
        remedy = f"pip install 'treadle[{extra}]'" + (f", {why}" if why else "")
        return Check(name, "missing", "not installed", remedy, needed)


def _classes() -> Check:
    """Check Treadle's own jar, and compile it if it is missing."""
    name = "Treadle's Java classes"
    try:
        return Check(name, "ok", str(jvm.jar()), needed=True)
    except TreadleError as error:
        return Check(name, "missing", _said(error), error.remedy, needed=True)
    except metadata.PackageNotFoundError:
        return Check(name, "missing", "can't be compiled without PySpark", "pip install 'treadle[spark]'", True)
    except OSError as error:
        remedy = "set TREADLE_HOME to a folder you may write"
        return Check(name, "missing", f"can't be kept: {error.strerror}", remedy, needed=True)


def _bundle(name: str) -> Check:
    bundle = jars.bundle(name)
    title = f"jars {name}"
    try:
        if jars.folder(bundle).is_dir():
            jars.paths(name)
            return Check(title, "ok", f"{len(bundle.sums)} jars: {bundle.title}")
    except TreadleError as error:
        return Check(title, "missing", _said(error), error.remedy)
    return Check(title, "note", f"not fetched: {bundle.title}", f"if you need them: treadle jars {name}")


def _configuration() -> Check:
    try:
        return Check("configuration", "ok", config.load()[1])
    except TreadleError as error:
        return Check("configuration", "note", _said(error), error.remedy)


def _cores() -> Check:
    usable, there = usable_cores(), os.cpu_count() or 0
    of = f" of {there}" if there > usable else ""
    return Check("usable cores", "ok", f"{usable}{of}: at first two slots for each, and four task threads")


def _psi() -> Check:
    try:
        PSI.read_bytes()
        return Check("CPU pressure (PSI)", "ok", str(PSI))
    except OSError as error:
        remedy = "boot with psi=1, or leave it: the number of slots then follows how busy the cores are"
        return Check("CPU pressure (PSI)", "note", f"{PSI}: {error.strerror}", remedy)


def _kernel() -> list[Check]:
    """Try each kernel feature that `treadle attach` can use. `treadle run` needs none of them."""
    release = Check("kernel", "ok", f"{platform.system()} {platform.release()}")
    facts = [
        Check(f"attach: {fact.what}", "ok" if fact.works else "note", fact.why, fact.remedy) for fact in kernel.facts()
    ]
    return [release, *facts]


def _jvms() -> Check:
    """Check whether there is a JVM that this user may attach to, and whether it answers."""
    name = "attach: JVM"
    found = running.find()
    if not found:
        who = "none runs here" if os.geteuid() == 0 else "none of yours runs here"
        return Check(name, "note", who, "" if os.geteuid() == 0 else "run as root to attach to JVMs of other users")
    trouble: TreadleError | None = None
    for each in found:
        try:
            count = len(running.dump(each.pid, frames=0))
        except TreadleError as error:
            trouble = error
            continue
        more = f"; {len(found) - 1} more JVMs run" if len(found) > 1 else ""
        return Check(
            name, "ok", f"process {each.pid} ({each.main.rpartition('/')[2]}) reports its {count} threads{more}"
        )
    assert trouble is not None
    return Check(name, "note", _said(trouble), trouble.remedy)


def _leftovers() -> Check:
    left = leftovers()
    if not left:
        return Check("attach: left by killed treadle processes", "ok", "nothing")
    return Check(
        "attach: left by killed treadle processes", "note", ", ".join(path.name for path in left), "treadle restore"
    )


def _settings() -> tuple[Setting, ...]:
    try:
        return settings()
    except (TreadleError, metadata.PackageNotFoundError, OSError):
        return ()


def _said(error: TreadleError) -> str:
    return f"{error.message} ({error.where})" if error.where else error.message
