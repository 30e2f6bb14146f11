"""A process of its own with threads to turn knobs on: some sleep, some burn CPU on one core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from treadle.enforce.kernel import Cgroups, find_mount, thread_ref
from treadle.enforce.kernel.mounts import group_of
from treadle.model import ThreadRef

CREW = """
import hashlib, os, sys, threading
kind, count, core = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if core:
    os.sched_setaffinity(0, {int(core)})
told, go = threading.Barrier(count + 1), threading.Event()
def work():
    os.write(1, b"%d\\n" % threading.get_native_id())
    told.wait()
    go.wait()
    while kind == "burn":
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2000)  # without the interpreter's lock
for _ in range(count):
    threading.Thread(target=work, daemon=True).start()
told.wait()
for line in sys.stdin:
    go.set()
"""

Start = Callable[..., tuple[ThreadRef, ...]]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Start a process with so many threads, which sleep or `burn` on one core until the tests end."""
    started: list[subprocess.Popen[str]] = []

    def start_threads(count: int, kind: str = "sleep") -> tuple[ThreadRef, ...]:
        core = str(max(os.sched_getaffinity(0))) if kind == "burn" else ""
        process = subprocess.Popen(
            [sys.executable, "-c", CREW, kind, str(count), core],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        tids = [int(process.stdout.readline()) for _ in range(count)]
        if kind == "burn":
            process.stdin.write("go\n")
            process.stdin.flush()
        return tuple(thread_ref(tid, process.pid) for tid in tids)

    yield start_threads
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def threads(start: Start) -> tuple[ThreadRef, ...]:
    """Three threads that sleep."""
    return start(3)


@pytest.fixture
def burners(start: Start) -> tuple[ThreadRef, ...]:
    """Two threads of one process that want all of one core."""
    return start(2, "burn")


@pytest.fixture
def used() -> Callable[[ThreadRef], float]:
    """The CPU seconds that a thread has used."""

    def seconds(thread: ThreadRef) -> float:
        with open(f"/proc/{thread.pid}/task/{thread.tid}/schedstat") as file:
            return int(file.read().split()[0]) / 1e9

    return seconds


@pytest.fixture
def spend(used: Callable[[ThreadRef], float]) -> Callable[..., list[float]]:
    """Wait until some threads have used so many CPU seconds together; what each has used since."""

    def wait(threads: tuple[ThreadRef, ...], seconds: float) -> list[float]:
        first = [used(thread) for thread in threads]
        while True:
            time.sleep(0.02)
            spent = [used(thread) - before for thread, before in zip(threads, first, strict=True)]
            if sum(spent) >= seconds:
                return spent

    return wait


@pytest.fixture(scope="module")
def cgroups() -> Iterator[Cgroups]:
    """Groups of cgroup v1 inside the one that the tests run in."""
    mount = find_mount()
    if mount is None or mount.version != 1:
        pytest.skip("no cpu controller of cgroup v1 here")
    own = group_of("/proc/self/cgroup", mount)
    if not os.access(mount.directory(own), os.W_OK):
        pytest.skip(f"no right to write to {mount.directory(own)}: run as root")
    made = Cgroups(f"treadle-test-{uuid.uuid4().hex[:8]}", parent=own)
    yield made
    assert made.clean() == []


@pytest.fixture(scope="session")
def root() -> None:
    """For what only root may do."""
    if os.geteuid() != 0:
        pytest.skip("no right to raise priorities: run as root")
