"""A dump gives every thread by the name its application made, with the kernel's id for it, whatever is in the name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import FUZZ
from treadle.errors import EngineError, TargetGone
from treadle.jvm import dump as dump_function
from treadle.jvm.attach import Answer, find
from treadle.jvm.dump import JavaThread, dump, parse

module = sys.modules[dump_function.__module__]
Process = subprocess.Popen[bytes]
Start = Callable[..., Process]

NEWER = """\
"main" #1 [4711] prio=5 os_prio=0 cpu=48.19ms elapsed=0.42s tid=0x00007f9c nid=4711 waiting on condition  [0x00007f]
   java.lang.Thread.State: TIMED_WAITING (sleeping)
\tat java.lang.Thread.sleep0(java.base@21/Native Method)
\tat java.lang.Thread.sleep(java.base@21/Thread.java:509)
\t- locked <0x0000000> (a java.lang.Object)
\tat Main.main(Main.java:5)

"unborn" #9 prio=5 os_prio=0 cpu=0.00ms elapsed=0.00s tid=0x00007f9d nid=NA runnable

"GC Thread#0" os_prio=0 cpu=3.11ms elapsed=0.45s tid=0x00007f9e nid=4712 runnable

JNI global refs: 7, weak refs: 0

Found one Java-level deadlock:
=============================
"a":
  waiting to lock monitor 0x00007f (object 0x00000, a java.lang.Object),
  which is held by "b"
"""


def test_threads_come_with_name_kernel_id_state_and_stack(jvm: Process) -> None:
    threads = {thread.name: thread for thread in dump(jvm.pid)}
    assert {"main", "waits (TID 1)", 'says "hello" #7 prio=5 nid=0x1 é', 'two\n"lines"'} <= threads.keys()
    assert threads["waits (TID 1)"].state == "WAITING"
    stack = threads["waits (TID 1)"].stack
    assert stack[1:3] == ("java.util.concurrent.locks.LockSupport.park", "Sample.waitForEver")
    assert threads["main"].state == "RUNNABLE"
    assert (threads["VM Thread"].state, threads["VM Thread"].stack) == ("", ())
    assert {thread.tid for thread in threads.values()} <= {int(name) for name in os.listdir(f"/proc/{jvm.pid}/task")}


def test_only_as_many_frames_as_wanted(jvm: Process) -> None:
    for frames in (0, 1, 3):
        assert max(len(thread.stack) for thread in dump(jvm.pid, frames=frames)) == frames


def test_stacks_are_read_only_of_the_threads_they_are_wanted_of(jvm: Process) -> None:
    threads = dump(jvm.pid, stack_of=lambda name: name.startswith("waits"))
    assert {thread.name for thread in threads if thread.stack} == {"waits (TID 1)"}


def test_the_kernel_knows_a_thread_by_the_beginning_of_its_name(jvm: Process) -> None:
    (thread,) = [thread for thread in dump(jvm.pid) if thread.name == "waits (TID 1)"]
    with open(f"/proc/{jvm.pid}/task/{thread.tid}/comm") as file:
        assert file.read() == "waits (TID 1)\n"


def test_the_text_of_newer_jvms_is_understood() -> None:
    assert parse("2026\nFull thread dump\n\n" + NEWER) == [
        JavaThread(
            "main", 4711, "TIMED_WAITING", ("java.lang.Thread.sleep0", "java.lang.Thread.sleep", "Main.main"), 1, 0x7F9C
        ),
        JavaThread("GC Thread#0", 4712, "", ()),
    ]


STATES = ["", "RUNNABLE", "BLOCKED", "WAITING", "TIMED_WAITING"]
NAMES = st.text(st.characters(exclude_categories=["Cs"])) | st.text('"\n\t #nid=0x1 at(')
THREADS = st.builds(
    JavaThread,
    NAMES,
    st.integers(1, 1 << 22),
    st.sampled_from(STATES),
    st.lists(st.sampled_from(["a.B.c", "a.B$$Lambda$1/0x7f.run", "a.B.<init>"]), max_size=9).map(tuple),
    st.just(0),
    st.just(0),
)


@given(st.lists(THREADS, max_size=6), st.integers(0, 8))
def test_whatever_is_in_a_name_all_threads_are_told_apart(threads: list[JavaThread], frames: int) -> None:
    text = "2026\nFull thread dump\n\n" + "".join(map(printed, threads)) + "JNI global refs: 7, weak refs: 0\n\n"
    known = [
        thread._replace(stack=thread.stack[:frames], number=12, address=2)
        if thread.state
        else thread._replace(stack=())
        for thread in threads
    ]
    assert parse(text, frames=frames) == known


PIECES = st.one_of(
    st.sampled_from(['"', "\n", " #1 ", " os_prio=0 ", " tid=0x1", " nid=0x1 ", " nid=NA ", " nid=007 "]),
    st.sampled_from([" nid=" + "9" * 5000 + " ", " #" + "9" * 5000 + " ", " tid=0x" + "f" * 99, " nid=0xfffffffff "]),
    st.sampled_from(["   java.lang.Thread.State: RUNNABLE", "\n\tat a.b(c", NEWER]),
    st.text(max_size=5),
)


@FUZZ
@given(st.lists(PIECES, max_size=12).map("".join))
def test_any_text_is_survived(text: str) -> None:
    for thread in (*parse(text), *parse(NEWER + text + NEWER)):
        assert 0 <= thread.tid < 2**31
        assert 0 <= thread.address < 2**64


@pytest.mark.parametrize("piece", ['"', '" #1 tid=0x', '"x" #1 tid=0x1 nid=', '" #1 \n', '"\n'])
def test_a_text_that_begins_much_and_ends_nothing_is_read_in_one_pass(piece: str) -> None:
    assert parse(piece * (4_000_000 // len(piece))) == []


def test_more_threads_than_any_jvm_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 1)
    with pytest.raises(EngineError, match="more than 1 threads"):
        parse(NEWER)


def test_a_thread_that_is_not_the_jvms_own_is_left_out(jvm: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names a thread so that it looks like another, with an id of its choice, has nobody else scheduled."""
    name = f'"evil" #99 prio=5 os_prio=0 cpu=1ms elapsed=1s tid=0x1 nid=0x{os.getpid():x} runnable  [0x0]\n\n'
    monkeypatch.setattr(module, "ask", lambda *_, **__: Answer(name, jvm.pid))
    assert [thread.tid for thread in parse(name)] == [os.getpid()]
    assert dump(jvm.pid) == []


def test_a_jvm_that_has_ended_is_gone(start: Start) -> None:
    process = start()
    process.kill()
    process.wait()
    with pytest.raises(TargetGone):
        dump(process.pid)


def test_ids_inside_a_container_become_ours(container: Process) -> None:
    (found,) = [jvm for jvm in find() if jvm.arguments == ("contained",)]
    threads = dump(found.pid)
    (thread,) = [thread for thread in threads if thread.name == "waits (TID 1)"]
    with open(f"/proc/{found.pid}/task/{thread.tid}/comm") as file:
        assert file.read() == "waits (TID 1)\n"
    assert {thread.tid for thread in threads} <= {int(name) for name in os.listdir(f"/proc/{found.pid}/task")}
    assert [(t.name, t.tid) for t in dump(found.pid)] == [(t.name, t.tid) for t in threads]


def printed(thread: JavaThread) -> str:
    """As HotSpot prints it."""
    if not thread.state:
        return f'"{thread.name}" os_prio=0 cpu=0.1ms elapsed=1.0s tid=0x01 nid=0x{thread.tid:x} runnable  \n\n'
    head = (
        f'"{thread.name}" #12 daemon prio=5 os_prio=0 cpu=1.0ms elapsed=2.0s tid=0x02 nid=0x{thread.tid:x} runnable  '
    )
    frames = "".join(f"\tat {frame}(java.base@17/X.java:1)\n\t- locked <0x1> (a X)\n" for frame in thread.stack)
    return f"{head}[0x00]\n   java.lang.Thread.State: {thread.state} (parking)\n{frames}\n"
