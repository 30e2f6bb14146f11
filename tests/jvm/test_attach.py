"""Attaching works on every HotSpot that is willing, and is one clear line, with nothing touched, on all others."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import FUZZ, sent
from treadle.errors import ConfigError, EngineError, TargetGone, TreadleError
from treadle.jvm import attach
from treadle.jvm.attach import execute, find, look
from treadle.linux.thread_times import start_time

Process = subprocess.Popen[bytes]
Start = Callable[..., Process]
NOBODY = 65534


@pytest.fixture
def sleeper() -> Iterator[Process]:
    """A process that is no JVM, and that SIGQUIT would end."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        assert process.poll() is None, "it was hit"
        process.kill()


def test_a_jvm_is_found_with_who_and_what_it_is(jvm: Process) -> None:
    (found,) = [item for item in find() if item.pid == jvm.pid]
    assert found == look(jvm.pid)
    assert (found.main, found.arguments) == ("Sample", ("shared",))
    assert found.options[0] == "-Xmx64m"
    assert found.user == pwd.getpwuid(os.geteuid()).pw_name
    assert found.start_time == start_time(jvm.pid, jvm.pid)


def test_what_is_no_jvm_is_not_found(sleeper: Process) -> None:
    assert sleeper.pid not in [item.pid for item in find()]


def test_a_command_is_answered(jvm: Process) -> None:
    assert "java.specification.version=" in execute(jvm.pid, "properties")
    assert "Sample" in execute(jvm.pid, "jcmd", "VM.command_line")


def test_a_command_that_the_jvm_does_not_know_is_refused_in_its_words(jvm: Process) -> None:
    with pytest.raises(EngineError, match=rf"process {jvm.pid}: refused 'dance': Operation dance not recognized!"):
        execute(jvm.pid, "dance")


def test_a_command_that_does_not_fit_the_protocol_is_not_sent(jvm: Process) -> None:
    for arguments in (("a", "b", "c", "d"), ("a" * 1025,), ("a\0b",)):
        with pytest.raises(ConfigError, match="3 arguments of up to 1024 bytes"):
            execute(jvm.pid, "jcmd", *arguments)


def test_attaching_leaves_no_trigger_behind_and_nothing_on_the_output(start: Start) -> None:
    process = start()
    execute(process.pid, "properties")
    assert not list(Path("/tmp").glob(f".attach_pid{process.pid}"))
    assert said_at_the_end(process) == b""


def test_a_process_that_has_ended_is_gone(sleeper: Process) -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it is there still, as a zombie
        with pytest.raises(TargetGone, match=rf"process {ended.pid}: has ended"):
            look(ended.pid)
    for ask in (look, lambda pid: execute(pid, "properties")):
        with pytest.raises(TargetGone, match=rf"process {ended.pid}: no such process"):
            ask(ended.pid)


def test_a_process_that_is_no_jvm_is_told_and_left_alone(sleeper: Process) -> None:
    for ask in (look, lambda pid: execute(pid, "properties")):
        with pytest.raises(EngineError, match=rf"process {sleeper.pid}: is not a JVM"):
            ask(sleeper.pid)


def test_the_id_of_a_thread_names_its_process(jvm: Process) -> None:
    tid = max(int(name) for name in os.listdir(f"/proc/{jvm.pid}/task"))
    with pytest.raises(EngineError, match=rf"a thread of process {jvm.pid} \(use {jvm.pid}\)"):
        look(tid)


def test_a_jvm_that_refuses_is_told_and_left_alone(start: Start) -> None:
    process = start("-XX:+DisableAttachMechanism")
    with pytest.raises(
        EngineError, match=r"does not allow attaching \(start it without -XX:\+DisableAttachMechanism\)"
    ):
        execute(process.pid, "properties")
    assert said_at_the_end(process) == b""


def test_a_jvm_that_leaves_signals_alone_is_attached_to_without_one(start: Start) -> None:
    process = start("-Xrs")
    assert process.pid in [item.pid for item in find()]
    assert execute(process.pid, "properties")
    os.unlink(f"/tmp/.java_pid{process.pid}")
    with pytest.raises(EngineError, match="does not handle SIGQUIT"):  # which would have ended it
        execute(process.pid, "properties")
    assert said_at_the_end(process) == b""


def test_a_refusal_in_the_environment_is_seen_too(start: Start) -> None:
    options = {**os.environ, "_JAVA_OPTIONS": "-XX:+DisableAttachMechanism"}
    process = start(env=options, stderr=subprocess.DEVNULL)
    with pytest.raises(EngineError, match="does not allow attaching"):
        execute(process.pid, "properties")


def test_a_stopped_jvm_is_sent_nothing(start: Start) -> None:
    process = start()
    stop(process)
    with pytest.raises(EngineError, match=rf"is stopped \(let it go on: kill -CONT {process.pid}\)"):
        execute(process.pid, "properties")
    process.send_signal(signal.SIGCONT)
    assert said_at_the_end(process) == b""


def test_a_jvm_that_stopped_after_it_was_attached_to_runs_into_the_timeout(start: Start) -> None:
    process = start()
    execute(process.pid, "properties")
    stop(process)
    with pytest.raises(EngineError, match="is stopped"):
        execute(process.pid, "properties", timeout=0.2)
    process.send_signal(signal.SIGCONT)
    assert execute(process.pid, "properties", timeout=60)


def test_a_jvm_that_dies_in_the_middle_is_gone(start: Start) -> None:
    process = start()
    execute(process.pid, "properties")
    stop(process)
    before = connections(process)  # the one that listens, and maybe that of the last answer, if it is not closed yet
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            execute(process.pid, "threaddump", timeout=60)
        except TargetGone as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while connections(process) == before:
        assert asking.is_alive()
    process.kill()
    asking.join()
    assert str(errors[0]) == f"process {process.pid}: ended in the middle of its answer"


def test_a_socket_that_was_cleaned_away_is_opened_again(start: Start) -> None:
    process = start()
    execute(process.pid, "properties")
    os.unlink(f"/tmp/.java_pid{process.pid}")
    assert execute(process.pid, "properties")


def test_a_socket_that_another_process_left_behind_is_no_obstacle(start: Start) -> None:
    process = start()
    leave_behind(process)
    assert execute(process.pid, "properties")


def test_a_stranger_who_listens_in_the_place_of_the_jvm_is_not_believed(start: Start) -> None:
    process = start()
    with closing(socket.socket(socket.AF_UNIX)) as stranger:
        stranger.bind(f"/tmp/.java_pid{process.pid}")
        stranger.listen()
        try:
            with pytest.raises(EngineError, match=rf"another process listens .*process {os.getpid()}"):
                execute(process.pid, "properties")
        finally:
            os.unlink(f"/tmp/.java_pid{process.pid}")


def test_root_attaches_to_the_jvm_of_another_user(root: None, start: Start) -> None:
    process = start(user=NOBODY, group=NOBODY, extra_groups=[])
    assert look(process.pid).user == pwd.getpwuid(NOBODY).pw_name
    assert execute(process.pid, "properties")


def test_root_takes_away_what_another_user_left_in_the_place_of_the_socket(root: None, start: Start) -> None:
    process = start(user=NOBODY, group=NOBODY, extra_groups=[])
    leave_behind(process)
    assert execute(process.pid, "properties")


def test_others_are_told_what_another_user_left_in_the_place_of_the_socket(root: None, start: Start) -> None:
    process = start(user=NOBODY, group=NOBODY, extra_groups=[])
    path = leave_behind(process)
    ask = f"""
        try:
            execute({process.pid}, "properties")
        except RightsError as error:
            print(error)
        """
    why = f"its attach socket can't be opened: another user has left {path} behind (as root: rm {path})"
    assert as_nobody(ask) == f"process {process.pid}: {why}\n"
    os.unlink(path)


@FUZZ
@given(st.one_of(st.binary(), st.tuples(st.sampled_from([b"0", b"1", b"", b"-1"]), st.binary()).map(b"\n".join)))
def test_any_answer_is_survived(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    with sent(answer) as connection, suppress(TreadleError):
        monkeypatch.setattr(attach, "_connect", lambda *_: connection)
        attach.ask(os.getpid(), "threaddump", timeout=60)


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "_LONGEST_ANSWER", 100_000)
    with sent(bytes(1_000_000)) as connection:
        monkeypatch.setattr(attach, "_connect", lambda *_: connection)
        with pytest.raises(EngineError, match=rf"process {os.getpid()}: sends more than 100000 bytes"):
            attach.ask(os.getpid(), "threaddump", timeout=60)


def test_a_process_with_more_groups_than_a_page_holds_is_no_obstacle(root: None, jvm: Process) -> None:
    groups = ("setpriv", "--groups", ",".join(map(str, range(100_000, 103_000))))
    with subprocess.Popen([*groups, "sleep", "1000"]) as process:
        try:
            while b"sleep" not in Path(f"/proc/{process.pid}/comm").read_bytes():
                assert process.poll() is None
            assert jvm.pid in [item.pid for item in find()]
            with pytest.raises(EngineError, match="is not a JVM"):
                look(process.pid)
        finally:
            process.kill()


def leave_behind(process: Process) -> str:
    """The socket of a JVM of root that once had the same id and was killed."""
    path = f"/tmp/.java_pid{process.pid}"
    with suppress(FileNotFoundError):
        os.unlink(path)
    with closing(socket.socket(socket.AF_UNIX)) as stale:
        stale.bind(path)
        os.chmod(path, 0o600)
    return path


def test_the_jvm_of_another_user_is_a_matter_of_rights(root: None, jvm: Process) -> None:
    said = as_nobody(
        f"""
        assert {jvm.pid} not in [jvm.pid for jvm in find()]
        for ask in (look, lambda pid: execute(pid, "properties")):
            try:
                ask({jvm.pid})
            except RightsError as error:
                print(error)
        """
    )
    assert said == 2 * f"process {jvm.pid}: belongs to another user, root (run as root)\n"


def test_another_group_of_the_same_user_is_a_matter_of_rights(root: None, start: Start) -> None:
    process = start(user=NOBODY, group=NOBODY, extra_groups=[])
    ask = f"""
        try:
            execute({process.pid}, "properties")
        except RightsError as error:
            print(error)
        """
    remedy = "run with that group id, or as root"
    why = f"process {process.pid}: runs with another group id ({NOBODY}), so it would not answer ({remedy})\n"
    assert as_nobody(ask, group=NOBODY - 1) == why
    execute(process.pid, "properties")  # now its socket is open, and it hangs up on the wrong group
    assert as_nobody(ask, group=NOBODY - 1) == why


def as_nobody(code: str, group: int = NOBODY) -> str:
    """What this code prints as another user, who becomes so only after it could read our files."""
    begin = f"""
        import os
        from treadle.jvm.attach import *
        os.setgroups([]); os.setresgid({group}, {group}, {group}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
        """
    lines = textwrap.dedent(begin) + textwrap.dedent(code)
    ran = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def stop(process: Process) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def said_at_the_end(process: Process) -> bytes:
    """What a JVM printed besides being ready; it ends by itself, so it was not hit by a signal."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    said = process.stdout.read()
    assert process.wait() == 0
    return said


def connections(process: Process) -> int:
    return Path("/proc/net/unix").read_text().count(f"/tmp/.java_pid{process.pid}.tmp\n")  # bound, then renamed


def test_threads_that_attach_at_once_send_one_signal(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second SIGQUIT would have the JVM print all stacks, and hang where nobody reads them."""
    process, sent = start(mark="several"), []
    meeting, send = threading.Barrier(4), signal.pidfd_send_signal

    def send_once_all_are_here(descriptor: int, number: int) -> None:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)
        sent.append(number)
        send(descriptor, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", send_once_all_are_here)
    answers: list[str] = []
    several = [threading.Thread(target=lambda: answers.append(execute(process.pid, "properties"))) for _ in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert (len(answers), sent) == (4, [signal.SIGQUIT])


def test_a_jvm_that_comes_to_its_signal_late_prints_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process, send = start(mark="late"), signal.pidfd_send_signal
    trigger = Path(f"/tmp/.attach_pid{process.pid}")

    def send_to_one_without_cpu(descriptor: int, number: int) -> None:
        process.send_signal(signal.SIGSTOP)
        send(descriptor, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", send_to_one_without_cpu)
    with pytest.raises(EngineError, match="is stopped"):
        execute(process.pid, "properties", timeout=0.2)
    assert trigger.exists()
    process.send_signal(signal.SIGCONT)
    assert "java.specification.version=" in execute(process.pid, "properties")
    assert not trigger.exists()
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    assert process.stdout.read() is None, "it has printed its stacks"
