"""What many tests need: to wait for a condition, names of their own, and the command line as a user gives it."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from treadle.control.settings import Changeable
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from treadle.pipelines.run.run import Run

LONG = 180.0
"""Seconds after which a condition is taken for one that never comes, on a machine that does much else."""


def until(condition: Callable[[], object], run: Run | None = None) -> None:
    """Wait for it; what a pipeline has failed with in the meantime is raised."""
    limit = time.monotonic() + LONG
    while not condition():
        if run is not None:
            run.check()
        assert time.monotonic() < limit, "it never came" if run is None else run.status()
        time.sleep(0.01)


class Held(NamedTuple):
    """What this process holds, of which nothing may be left over: threads of Treadle, files, and Unix sockets."""

    threads: list[str]
    files: int
    sockets: int


def held() -> Held:
    """What is held now. Sockets to the JVM are not counted: py4j keeps some."""
    threads = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("treadle"))
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
    unix = {f"socket:[{line.split()[6]}]" for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    kept = ("/statm", "/proc/loadavg")  # a cache of limited size (`linux.files.open_files`), and one file for ever
    files = [link for link in links if not link.startswith("socket:") and not link.endswith(kept)]
    shared = min(1, files.count("anon_inode:inotify"))  # one watcher of folders serves the process to its end
    return Held(threads, len(files) - shared, sum(link in unix for link in links))


def _is_open(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


def change(
    runs: Changeable, chance: random.Random, right: Mapping[str, Sequence[Any]], wrong: Mapping[str, Sequence[Any]]
) -> None:
    """Change some settings to right values at once, or together with a wrong one, which must change nothing."""
    wanted = {name: chance.choice(right[name]) for name in chance.sample(sorted(right), chance.randint(1, 4))}
    refused = chance.choice(sorted(wrong)) if chance.random() < 0.4 else None
    before, remembered = runs.settings.read(), runs.history
    if refused is None:
        changed = runs.set(**wanted)
        now = runs.settings.read()
        assert {each.setting: each.after for each in changed} == {
            name: value for name, value in now.items() if value != before[name]
        }
    else:
        with pytest.raises(ConfigError):
            runs.set(**{**wanted, refused: chance.choice(wrong[refused])})
        assert (runs.settings.read(), runs.history) == (before, remembered)


def named(what: str) -> str:
    """Pipelines listen at a socket of their name, and topics stay, so each has its own."""
    return f"{what}-{uuid.uuid4().hex[:8]}"


def treadle(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The command as a user gives it; its exit code."""
    from treadle import cli

    monkeypatch.setattr("sys.argv", ["treadle", *words])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0
