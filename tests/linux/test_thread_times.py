"""What the kernel counts for a thread is read as it stands, and one that has ended is unknown."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from treadle.errors import EngineError, TargetGone
from treadle.linux.thread_times import ThreadTimes, start_time

Process = subprocess.Popen[bytes]


@pytest.fixture
def times() -> Iterator[ThreadTimes]:
    sampler = ThreadTimes()
    yield sampler
    sampler.close()


@pytest.fixture
def busy() -> Iterator[list[Process]]:
    """Two processes that share one core and would each use all of it."""
    core = min(os.sched_getaffinity(0))
    spin = ["taskset", "-c", str(core), "sh", "-c", "while :; do :; done"]
    pair = [subprocess.Popen(spin), subprocess.Popen(spin)]
    yield pair
    for process in pair:
        process.kill()
        process.wait()


def ended() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_start_time_tells_threads_apart_and_never_changes() -> None:
    pid = os.getpid()
    here = start_time(pid, pid)
    assert here == start_time(pid, pid) > 0
    with subprocess.Popen(["sleep", "100"]) as child:
        assert start_time(child.pid, child.pid) >= here
        child.kill()


def test_start_time_is_found_behind_any_name(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("sleep") or "", odd)
    with subprocess.Popen([odd, "100"]) as child, subprocess.Popen(["sleep", "100"]) as other:
        assert 0 <= start_time(other.pid, other.pid) - start_time(child.pid, child.pid) < 60 * os.sysconf("SC_CLK_TCK")
        child.kill()
        other.kill()


def test_start_time_of_what_has_ended_or_is_elsewhere_is_gone() -> None:
    pid = ended()
    with pytest.raises(TargetGone, match=f"process {pid}, thread {pid}: has ended"):
        start_time(pid, pid)
    with pytest.raises(TargetGone):
        start_time(os.getpid(), 1)  # a thread, but of another process


def test_a_busy_thread_gains_cpu_time_and_one_without_a_core_waits(busy: list[Process], times: ThreadTimes) -> None:
    threads = tuple((process.pid, process.pid) for process in busy)
    first = times.sample(threads)
    while True:
        last = times.sample(threads)
        if (last.cpu_time > first.cpu_time + 0.02).all() and (last.run_wait > first.run_wait + 0.02).all():
            break
        time.sleep(0.01)
    assert (last.switches >= first.switches).all()


def test_cpu_time_is_that_of_the_thread_alone(times: ThreadTimes) -> None:
    mine = ((os.getpid(), threading.get_native_id()),)
    before = time.thread_time()
    sampled = times.sample(mine).cpu_time[0]
    assert before - 0.05 < sampled < time.thread_time() + 0.05


def test_switches_are_told_apart(times: ThreadTimes) -> None:
    mine = ((os.getpid(), threading.get_native_id()),)
    before = times.switches(mine)
    for _ in range(20):
        time.sleep(0.0001)
    after = times.switches(mine)
    assert after.voluntary[0] >= before.voluntary[0] + 20
    assert after.involuntary[0] >= before.involuntary[0]


def test_a_thread_that_has_ended_is_unknown_and_the_others_are_not(times: ThreadTimes) -> None:
    mine = (os.getpid(), threading.get_native_id())
    with subprocess.Popen(["sleep", "100"]) as child:
        threads = (mine, (child.pid, child.pid), (ended(), 1))
        assert np.isnan(times.sample(threads).cpu_time).tolist() == [False, False, True]
        assert np.isnan(times.switches(threads).voluntary).tolist() == [False, False, True]
        child.kill()
    for _ in range(2):
        for column in (*times.sample(threads), *times.switches(threads)):
            assert np.isnan(column).tolist() == [False, True, True]


def test_files_are_kept_while_asked_for_and_closed_after(times: ThreadTimes) -> None:
    mine = (os.getpid(), threading.get_native_id())
    with subprocess.Popen(["sleep", "100"]) as child:
        before = open_files()
        for _ in range(3):
            times.sample((mine, (child.pid, child.pid)))
        assert open_files() == before + 2
        times.sample((mine,))
        assert open_files() == before + 1
        times.sample((mine, (child.pid, child.pid)))
        child.kill()
    times.sample((mine, (child.pid, child.pid)))
    assert open_files() <= before + 1
    times.close()
    assert not np.isnan(times.sample((mine,)).cpu_time).any()


def test_no_threads_are_no_rows(times: ThreadTimes) -> None:
    assert [len(column) for column in (*times.sample(()), *times.switches(()))] == [0] * 5


def test_too_few_open_files_is_told_with_the_remedy(times: ThreadTimes) -> None:
    mine = ((os.getpid(), threading.get_native_id()),)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(EngineError, match=r"too many open files .*ulimit -n"):
            times.sample(mine)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
