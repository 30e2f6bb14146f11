"""What many tests need: to wait for a condition, names of their own, and the command line as a user gives it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

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
