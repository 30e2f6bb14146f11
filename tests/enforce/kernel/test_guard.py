"""Only the very thread that was meant is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from treadle.enforce.kernel import alive, make, thread_ref
from treadle.enforce.kernel.guard import OpenFiles
from treadle.errors import ConfigError, TargetGone
from treadle.model import ThreadRef


def test_a_thread_that_runs_is_alive(threads: tuple[ThreadRef, ...]) -> None:
    for thread in threads:
        assert alive(thread) is thread


def test_a_thread_that_has_ended_is_gone() -> None:
    refs: list[ThreadRef] = []
    thread = threading.Thread(target=lambda: refs.append(thread_ref(threading.get_native_id())))
    thread.start()
    thread.join()
    while os.path.exists(f"/proc/{refs[0].pid}/task/{refs[0].tid}"):
        pass
    with pytest.raises(TargetGone, match="has ended"):
        alive(refs[0])


def test_a_thread_that_was_asked_for_before_is_gone_when_it_has_ended() -> None:
    """Its file is open still, and says so."""
    refs: list[ThreadRef] = []
    named, end = threading.Event(), threading.Event()

    def work() -> None:
        refs.append(thread_ref(threading.get_native_id()))
        named.set()
        end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    named.wait()
    assert alive(refs[0]) is refs[0]
    end.set()
    thread.join()
    while os.path.exists(f"/proc/{refs[0].pid}/task/{refs[0].tid}"):
        pass
    for _ in range(2):
        with pytest.raises(TargetGone, match="has ended"):
            alive(refs[0])


def test_no_more_files_are_kept_open_than_are_allowed(threads: tuple[ThreadRef, ...]) -> None:
    kept = OpenFiles(2)
    before = len(os.listdir("/proc/self/fd"))
    for thread in threads * 2:
        assert kept.runs(thread)
    assert not kept.runs(replace(threads[0], start_time=threads[0].start_time + 1))
    assert len(os.listdir("/proc/self/fd")) == before + 2
    kept.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_same_id_with_another_start_time_is_another_thread(threads: tuple[ThreadRef, ...]) -> None:
    with pytest.raises(TargetGone):
        alive(replace(threads[0], start_time=threads[0].start_time + 1))


def test_a_thread_of_another_process_than_the_named_one_is_not_touched(threads: tuple[ThreadRef, ...]) -> None:
    stranger = replace(threads[0], pid=os.getpid())
    before = os.getpriority(os.PRIO_PROCESS, stranger.tid)
    for name in ("nice", "rt", "slice"):
        with pytest.raises(TargetGone):
            make(name).write(stranger, 0.005 if name == "slice" else 3.0)
    assert os.getpriority(os.PRIO_PROCESS, stranger.tid) == before


def test_a_process_that_is_dead_but_not_waited_for_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        ref = thread_ref(process.pid, process.pid)
        assert alive(ref) is ref
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(TargetGone):
            alive(ref)
    finally:
        process.communicate()


def test_the_name_of_a_group_is_no_thread() -> None:
    with pytest.raises(ConfigError, match="is not a thread"):
        alive("query")
