"""Processes that own their /tmp, and do with it what they like."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NOBODY = 65534
Process = subprocess.Popen[bytes]
Begin = Callable[..., Process]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder outside of /tmp that every user can enter."""
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of another user")
    folder = Path(tempfile.mkdtemp(prefix="treadle-tests-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start a process, and wait until it has said that it is ready."""
    running: list[Process] = []

    def started(*command: str | Path) -> Process:
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert running[-1].stdout is not None
        assert running[-1].stdout.readline() == b"ready\n"
        return running[-1]

    yield started
    for process in running:
        with process:
            process.kill()


@pytest.fixture
def spaced(place: Path, begin: Begin) -> Callable[[str], Process]:
    """Run Python code as `nobody` in a user and mount namespace of its own, in which it is root and owns its /tmp."""
    own = place / "own"
    own.mkdir(mode=0o700)
    os.chown(own, NOBODY, NOBODY)
    other = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    space = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'mount --bind {own} /tmp && exec "$@"')
    return lambda code: begin(*other, *space, "sh", "/usr/bin/python3", "-c", code)


@pytest.fixture
def jailed(place: Path, begin: Begin) -> Callable[[Path], Process]:
    """A process of `nobody` in a root folder of its own, whose /tmp is a symbolic link to this path."""

    def started(target: Path) -> Process:
        root = place / "root"
        for name in ("usr", "lib", "lib64", "bin"):
            (root / name).mkdir(parents=True)
        (root / "tmp").symlink_to(target)
        mounts = "; ".join(f"mount --bind /{name} {root}/{name}" for name in ("usr", "lib", "lib64", "bin"))
        inside = f'{mounts}; exec chroot --userspec={NOBODY}:{NOBODY} {root} "$@"'
        wait = ("/bin/sh", "-c", "echo ready; exec sleep 1000")
        return begin("unshare", "--mount", "sh", "-c", inside, "sh", *wait)

    return started
