"""Real JVMs to look into, compiled once and started for the tests that need one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from treadle import jars

NOBODY = 65534
Process = subprocess.Popen[bytes]
Start = Callable[..., Process]

java = cache(jars.java)
"""Which one it is, asked once."""


@pytest.fixture(scope="package")
def classes() -> Iterator[Path]:
    """The compiled program, in a folder that other users can read too."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-classes-"))
    folder.chmod(0o755)
    compiler = Path(java()).resolve().parent / "javac"
    subprocess.run([compiler, "-d", folder, Path(__file__).parent / "Sample.java"], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="package")
def jvm(classes: Path) -> Iterator[Process]:
    """A JVM that all tests share; it burns no CPU."""
    process = started(classes, "shared")
    yield process
    end(process)


@pytest.fixture
def start(classes: Path) -> Iterator[Start]:
    """Start JVMs of a test's own: options, then `mark=` to know it by, and what `Popen` takes."""
    running: list[Process] = []

    def begin(*options: str, mark: str = "own", **more: Any) -> Process:
        running.append(started(classes, mark, *options, **more))
        return running[-1]

    yield begin
    for process in running:
        end(process)


@pytest.fixture
def container(root: None, classes: Path, start: Start) -> Process:
    """A JVM with process ids, files and a network of its own; it is given "contained" as its argument."""
    inside = f'mount --bind {classes} /mnt && mount -t tmpfs none /tmp && ip link set lo up && exec "$@"'
    space = ("unshare", "--pid", "--mount", "--net", "--fork", "--kill-child", "sh", "-c", inside, "sh")
    return start(mark="contained", wrap=space, where=Path("/mnt"))


@pytest.fixture
def spaced(root: None, classes: Path, start: Start) -> Iterator[Process]:
    """A JVM of `nobody` with users and files of its own: inside it is root, and nobody else is known."""
    own = Path(tempfile.mkdtemp(prefix="treadle-tests-", dir="/var/tmp"))
    os.chown(own, NOBODY, NOBODY)
    inside = f'mount --bind {classes} /mnt && mount --bind {own} /tmp && exec "$@"'
    space = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside)
    other = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    yield start(mark="spaced", wrap=(*other, *space, "sh"), where=Path("/mnt"))
    shutil.rmtree(own)


@pytest.fixture
def root() -> None:
    """For tests in which another user or a container takes part."""
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of another user, or in namespaces of their own")


def end(process: Process) -> None:
    """Kill a JVM. What it leaves in /tmp stands in the way of the next with its id, if that has another user."""
    process.kill()
    with process:
        Path(f"/tmp/.java_pid{process.pid}").unlink(missing_ok=True)


def started(
    classes: Path, mark: str, *options: str, wrap: tuple[str, ...] = (), where: Path | None = None, **more: Any
) -> Process:
    """A JVM that is up: it has said so."""
    flags = ["-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *options]
    command = [*wrap, java(), *flags, "-cp", str(where or classes), "Sample", mark]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process
