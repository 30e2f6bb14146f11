"""A channel has one writer at a time, in this process and among all, and the lock ends with its process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from treadle.errors import EngineError
from treadle.linux.files.file_lock import Lock, holder

HOLD = """
import sys
from pathlib import Path
from treadle.linux.files.file_lock import Lock
lock = Lock(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def test_a_second_writer_is_told_which_process_has_the_channel(tmp_path: Path) -> None:
    with another(tmp_path) as process:
        assert holder(tmp_path) == process.pid
        with pytest.raises(EngineError, match=f"process {process.pid} already writes") as caught:
            Lock(tmp_path)
        assert caught.value.where == str(tmp_path)
    Lock(tmp_path).release()


def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path) -> None:
    with another(tmp_path) as process:
        process.kill()
    assert holder(tmp_path) is None
    Lock(tmp_path).release()


def test_a_second_writer_in_this_process_is_refused_and_takes_nothing_away(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "c")
    lock = Lock(tmp_path / "c")
    for folder in (tmp_path / "c", tmp_path / "alias"):
        with pytest.raises(EngineError, match=f"process {os.getpid()} already"):
            Lock(folder)
        assert holder(folder) == os.getpid()
    seen = "from pathlib import Path; from treadle.linux.files.file_lock import holder; print(holder(Path({!r})))"
    told = subprocess.run([sys.executable, "-c", seen.format(str(tmp_path / "c"))], capture_output=True, check=True)
    assert int(told.stdout) == os.getpid()
    lock.release()
    lock.release()
    assert holder(tmp_path / "c") is None


def test_a_released_lock_is_no_longer_held(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    assert lock.held
    lock.release()
    assert not lock.held
    assert holder(tmp_path / "nowhere") is None
