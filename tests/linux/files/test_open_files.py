"""Thousands of threads are sampled, changed and put back, however few files a process may have open."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from treadle.linux.files import open_files
from treadle.linux.files.open_files import KeptFiles, open_file, raise_limit

MANY = 5000
FEW = 160

THREADS = f"""
import os, sys, threading
threading.stack_size(1 << 16)
ends = threading.Event()
for _ in range({MANY} - 1):
    threading.Thread(target=ends.wait, daemon=True).start()
print("go", flush=True)
sys.stdin.read()
os._exit(0)
"""

TURNS = """
import json, os, resource, sys
from pathlib import Path
import numpy as np
from treadle.enforce import Enforcer
from treadle.enforce.recovery.journal import Journal
from treadle.enforce.kernel import NiceKnob, thread_ref
from treadle.engines.spark.threads.change_hints import ChangeHints
from treadle.linux.files.open_files import raise_limit
from treadle.linux.thread_times import ThreadTimes
pid, soft, hard, folder = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
raise_limit()
threads = tuple(thread_ref(tid, pid) for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task"))))
plain = tuple((thread.pid, thread.tid) for thread in threads)
times, signs = ThreadTimes(), ChangeHints()
known = [int(np.isfinite(times.sample(plain).cpu_time).sum()) for _ in range(2)]
known += [int(np.isfinite(times.switches(plain).voluntary).sum())]
known += [sum(name is not None for name in signs.read([pid], plain)) - 1]
with Journal.open(Path(folder)) as journal:
    enforcer = Enforcer(NiceKnob(), journal=journal)
    applied = enforcer.apply(enforcer.diff(threads, np.full(len(threads), 7.0)))
    nices = {os.getpriority(os.PRIO_PROCESS, thread.tid) for thread in threads}
    known += [int(np.isfinite(times.sample(plain).cpu_time).sum())]
    restored = enforcer.restore()
    again = {os.getpriority(os.PRIO_PROCESS, thread.tid) for thread in threads}
kept = len(os.listdir("/proc/self/fd"))
failures = [str(each) for each in (*applied.failures, *restored.failures)][:3]
counts = [len(applied.applied), len(restored.applied)]
print(json.dumps([known, counts, failures, sorted(nices), sorted(again), kept]))
"""
"""As an attachment does, in a process of its own with limits of its own."""


@pytest.fixture(scope="module")
def many() -> Iterator[int]:
    """A process with many threads that sleep."""
    if os.geteuid() != 0:
        pytest.skip("no right to lower nice again: run as root")
    with subprocess.Popen([sys.executable, "-c", THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"go\n"
        yield process.pid
        process.kill()


@pytest.mark.parametrize(("soft", "hard"), [(FEW, FEW), (FEW, 8192)])
def test_thousands_of_threads_are_sampled_changed_and_put_back(many: int, soft: int, hard: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TURNS, json.dumps([many, soft, hard, str(tmp_path)])]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    known, counts, failures, nices, again, kept = json.loads(ended.stdout)
    assert failures == []
    assert known == [MANY] * 5
    assert counts == [MANY, MANY]
    assert (nices, again) == ([7], [0])
    assert kept < hard
    assert (kept > FEW) == (hard > FEW)


class TestAFullTable:
    """No more file can be opened in this process."""

    @pytest.fixture(autouse=True)
    def _as_before(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(open_files._Room, "most", open_files.MOST)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    @pytest.fixture
    def kept(self) -> Iterator[KeptFiles]:
        files = KeptFiles("comm", 16)
        files.read((os.getpid(), os.getpid()))
        assert len(files) == 1
        yield files
        files.close()

    @pytest.fixture
    def taken(self, kept: KeptFiles) -> Iterator[None]:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 10, hard))
        taken: list[int] = []
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
        for file in taken:
            os.close(file)

    @pytest.mark.usefixtures("taken")
    def test_what_was_only_kept_gives_way_to_what_must_be_opened(self, kept: KeptFiles) -> None:
        os.close(open_file("/proc/self/stat"))
        assert len(kept) == 0
        assert kept.read((os.getpid(), os.getpid()))

    @pytest.mark.usefixtures("taken")
    def test_what_another_thread_is_just_reading_is_not_closed(self, kept: KeptFiles) -> None:
        reads, done = threading.Event(), threading.Event()

        def read() -> None:
            with kept.lock:
                reads.set()
                done.wait()

        thread = threading.Thread(target=read)
        thread.start()
        reads.wait()
        try:
            with pytest.raises(OSError, match="Too many open files"):
                open_file("/proc/self/stat")
        finally:
            done.set()
            thread.join()
        assert len(kept) == 1

    @pytest.mark.usefixtures("taken")
    def test_the_limit_is_raised_as_far_as_it_may_be(self) -> None:
        raise_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == min(hard, open_files.MOST)
        os.close(os.dup(0))
