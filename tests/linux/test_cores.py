"""What processes use of the cores is counted with all that they have started, and apart from what others use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support import until
from treadle.linux.cores import Cores, tree_seconds

BURN = "while True: pass"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"


@pytest.fixture
def parent() -> Iterator[int]:
    """A process that waits for a child of its own, which burns a core."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], start_new_session=True)
    yield process.pid
    os.killpg(process.pid, 9)
    process.wait()


def test_children_count_with_who_started_them(parent: int) -> None:
    until(lambda: tree_seconds(parent) > 0.5)


def test_what_others_use_is_counted_apart(parent: int) -> None:
    idle = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    cores = Cores([idle.pid])
    until(lambda: cores.read().others > 0.5)
    assert cores.read().ours < 0.5
    cores.close()
    idle.communicate()


def test_a_process_that_is_gone_uses_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert tree_seconds(process.pid) == 0.0
