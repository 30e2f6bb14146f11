"""Where a JVM keeps the kernel's ids of its threads is found out from one dump, and right for all that come later."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from treadle.jvm.dump import dump
from treadle.jvm.natives import Natives

Process = subprocess.Popen[bytes]
Start = Callable[..., Process]


def test_every_java_thread_is_found_as_the_dump_says(jvm: Process) -> None:
    threads = [thread for thread in dump(jvm.pid) if thread.number and thread.name != "main"]  # the kernel's is java
    natives = Natives(jvm.pid, threads[:6])
    assert natives.known
    assert {t.name: natives.find(t.address, t.name) for t in threads} == {t.name: t.tid for t in threads}


def test_threads_that_have_ended_since_the_dump_do_no_harm(jvm: Process) -> None:
    threads = [thread for thread in dump(jvm.pid) if thread.number]
    ended = [thread._replace(number=0, address=16 * number) for number, thread in enumerate(threads[:5], 1)]
    assert Natives(jvm.pid, [*ended, *threads]).known


def test_a_thread_of_another_name_is_not_taken_for_it(jvm: Process) -> None:
    threads = dump(jvm.pid)
    natives = Natives(jvm.pid, threads)
    main = next(thread for thread in threads if thread.name == "main")
    assert natives.find(main.address, "Executor task launch worker") is None
    assert natives.find(main.address) == main.tid
    assert natives.find(0, "main") is None
    assert natives.find(16, "main") is None


def test_what_a_dump_does_not_tell_is_not_guessed(jvm: Process) -> None:
    threads = [thread for thread in dump(jvm.pid) if thread.number]
    wrong = [thread._replace(tid=thread.tid + 100_000_000) for thread in threads]
    for known in ([], threads[:3], wrong):
        natives = Natives(jvm.pid, known)
        assert not natives.known
        assert natives.find(threads[0].address, threads[0].name) is None


def test_of_a_jvm_that_has_ended_nothing_is_found(start: Start) -> None:
    process = start()
    threads = dump(process.pid)
    natives = Natives(process.pid, threads)
    process.kill()
    process.wait()
    assert not any(natives.find(thread.address, thread.name) for thread in threads)
    assert not Natives(process.pid, threads).known
