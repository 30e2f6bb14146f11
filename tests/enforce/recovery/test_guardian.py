"""A process that is killed at any moment leaves no trace: real processes, real priorities, real kills."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from support import LONG
from treadle.enforce import Enforcer, kernel
from treadle.enforce.kernel import RealtimeKnob, find_mount, thread_ref
from treadle.enforce.recovery.guardian import BEAT, OFF, Guardian
from treadle.enforce.recovery.guardian_process import Post
from treadle.enforce.recovery.journal import Journal
from treadle.enforce.recovery.journal_book import read
from treadle.enforce.recovery.leftovers import leftovers, put_back
from treadle.errors import EngineError
from treadle.linux.sched import get_attributes
from treadle.model import ThreadRef

NOBODY = 65534
KILLS = int(os.environ.get("TREADLE_KILLS", "10"))
SEED = int(os.environ.get("TREADLE_SEED", str(time.time_ns() % 1_000_000)))

CREW = """
import hashlib, os, sys, threading
def burn():
    os.write(1, b"%d\\n" % threading.get_native_id())
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2000)  # without the interpreter's lock
for _ in range(int(sys.argv[1])):
    threading.Thread(target=burn, daemon=True).start()
sys.stdin.read()
"""
"""Threads that burn CPU, for others to turn knobs on."""

OWNER = """
import json, sys
from pathlib import Path
import numpy as np
from treadle.enforce import Enforcer, kernel
from treadle.enforce.recovery.guardian import Guardian
from treadle.enforce.recovery.journal import Journal
from treadle.model import ThreadRef
folder, base, names, threads, seed = json.loads(sys.argv[1])
threads = tuple(ThreadRef(*thread) for thread in threads)
journal = Journal.open(Path(folder))
Guardian.start(journal)
enforcers = {}
for name in names:
    options = {"base": base} if name in ("group", "shares", "quota", "rt") else {}
    enforcers[name] = Enforcer(kernel.make(name, **options), journal=journal)
print("go", flush=True)
draw = np.random.default_rng(seed)
groups = ("one", "two/inner")
while True:
    for name, enforcer in enforcers.items():
        count = len(threads)
        if name == "group":
            targets, wanted = threads, draw.choice(np.array([*groups, None], dtype=object), count)
        elif name in ("shares", "quota"):
            targets, wanted = groups, draw.integers(1000, 3000, 2) / (1 if name == "shares" else 1000)
        else:
            low, high = {"nice": (-20, 20), "rt": (0, 50), "slice": (1, 20)}[name]
            targets, wanted = threads, draw.integers(low, high, count).astype(float)
            if name == "slice":
                wanted = wanted / 1000
        outcomes = enforcer.apply(enforcer.diff(targets, wanted))
        assert not outcomes.failures, outcomes.failures
        if draw.random() < 0.2:
            enforcer.restore(targets[:1])
    journal.tend()
    if draw.random() < 0.01:
        [enforcer.restore() for enforcer in reversed(enforcers.values())]
"""
"""Turns all knobs at random until it is killed."""

REALTIME_OWNER = """
import ctypes, json, os, sys, threading, time
from pathlib import Path
import numpy as np
from treadle.enforce import Enforcer, kernel
from treadle.enforce.recovery.guardian import Guardian
from treadle.enforce.recovery.journal import Journal
from treadle.enforce.recovery.watchdog import Watchdog
from treadle.model import ThreadRef
folder, base, threads = json.loads(sys.argv[1])
threads = tuple(ThreadRef(*thread) for thread in threads)
journal = Journal.open(Path(folder))
guardian = Guardian.start(journal, released=lambda reason: print(f"released: {reason}", flush=True))
Watchdog(lambda reason: None, beat=guardian.beat).start()
enforcer = Enforcer(kernel.make("rt", base=base), journal=journal)
outcomes = enforcer.apply(enforcer.diff(threads, np.array([5.0, 6.0])))
print("no rights" if outcomes.failures else "go", flush=True)
def tend():
    while True:
        journal.tend()
        time.sleep(0.05)
threading.Thread(target=tend, daemon=True).start()
sys.stdin.readline()
ctypes.PyDLL(None).sleep(1000)  # with the interpreter's lock: no other thread of this process runs
"""
"""Gives threads real-time priorities and sends heartbeats; at a line on its standard input it hangs."""

COMBINATIONS = (
    ("nice",),
    ("group", "shares", "quota"),
    ("rt",),
    ("slice", "nice"),
    ("group", "shares", "nice"),
    ("group", "shares", "rt"),
)


@pytest.fixture(scope="module")
def crew() -> Iterator[tuple[ThreadRef, ...]]:
    """Two threads of another process that want all the CPU they can get, on one core."""
    if os.geteuid() != 0:
        pytest.skip("no right to lower nice and to set real-time priorities: run as root")
    command = [sys.executable, "-c", CREW, "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        tids = [int(process.stdout.readline()) for _ in range(2)]
        for tid in tids:
            os.sched_setaffinity(tid, {max(os.sched_getaffinity(0))})
        yield tuple(thread_ref(tid, process.pid) for tid in tids)
        process.kill()


@pytest.fixture
def base() -> str:
    return f"treadle-test-{uuid.uuid4().hex[:8]}"


def state(threads: tuple[ThreadRef, ...]) -> list[tuple[object, ...]]:
    """All that may be changed of a thread, as the kernel has it."""
    return [
        (
            os.getpriority(os.PRIO_PROCESS, thread.tid),
            os.sched_getscheduler(thread.tid),
            os.sched_getparam(thread.tid).sched_priority,
            Path(f"/proc/{thread.pid}/task/{thread.tid}/cgroup").read_text(),
            get_attributes(thread.tid).runtime,
        )
        for thread in threads
    ]


@contextmanager
def own(
    folder: Path, names: tuple[str, ...], crew: tuple[ThreadRef, ...], *, base: str = "", seed: int = SEED
) -> Iterator[subprocess.Popen[str]]:
    """A process that turns these knobs, killed in the end if it is not yet."""
    threads = [(thread.tid, thread.pid, thread.start_time) for thread in crew]
    arguments = json.dumps([str(folder), base, names, threads, seed])
    process = subprocess.Popen([sys.executable, "-c", OWNER, arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def own_realtime(folder: Path, base: str, crew: tuple[ThreadRef, ...]) -> Iterator[subprocess.Popen[str]]:
    """A process that has given two threads real-time priorities, killed in the end."""
    threads = [(thread.tid, thread.pid, thread.start_time) for thread in crew]
    arguments = json.dumps([str(folder / "state"), base, threads])
    found = state(crew)
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", REALTIME_OWNER, arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout is not None
        if process.stdout.readline() == "no rights\n":
            pytest.skip("no real-time priorities here")
        assert not ordinary(crew)
        yield process
    finally:
        process.kill()
        process.communicate()
    until(lambda: state(crew) == found and not list((folder / "state").iterdir()))


def ordinary(threads: tuple[ThreadRef, ...]) -> bool:
    """Whether none of them is real-time."""
    return all(os.sched_getscheduler(thread.tid) == os.SCHED_OTHER for thread in threads)


class Ticks:
    """A clock that stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def replace_python(monkeypatch: pytest.MonkeyPatch, folder: Path, python: str) -> None:
    """Let guardians be started by something that is none."""
    scripts = {
        "hangs": f"mkdir -p {folder}/pids; touch {folder}/pids/$$; exec sleep 1000",
        "breaks": "echo \"no module 'x'\" >&2; exit 1",
    }
    if python in scripts:
        script = folder / python
        script.write_text(f"#!/bin/sh\n{scripts[python]}\n")
        script.chmod(0o755)
        python = str(script)
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setattr("treadle.enforce.recovery.guardian.STARTS_WITHIN", 0.5)


def until(condition: Callable[[], object], told: str = "") -> None:
    """Wait for it."""
    limit = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < limit, told or "it never came"
        time.sleep(0.01)


def guardian_of(folder: Path) -> int:
    """The id of the one guardian that keeps a journal there."""
    (path,) = folder.glob("*.journal")
    return read(path).guardian.pid


def test_everything_is_as_it_was_after_kills_at_random_moments(
    crew: tuple[ThreadRef, ...], base: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("TREADLE_SEED", SEED)
    mount = find_mount()
    draw = random.Random(SEED)
    found = state(crew)
    combinations = [names for names in COMBINATIONS if "group" not in names or (mount and mount.version == 1)]
    for number in range(KILLS):
        names = combinations[number % len(combinations)]
        told = f"kill {number} of TREADLE_SEED={SEED} with {', '.join(names)}"
        with own(tmp_path, names, crew, base=base, seed=draw.getrandbits(32)) as owner:
            if draw.random() < 0.8:
                until(lambda: state(crew) != found)
            time.sleep(draw.random() * 0.1)  # a moment of chance
            assert owner.poll() is None, told
        until(lambda: state(crew) == found and not list(tmp_path.iterdir()), told)
        assert mount is None or not Path(mount.directory(f"/{base}")).exists(), told


def test_a_guardian_that_is_killed_too_leaves_a_journal_to_put_back_from(
    crew: tuple[ThreadRef, ...], tmp_path: Path
) -> None:
    found = state(crew)
    with own(tmp_path, ("nice",), crew) as owner:
        until(lambda: state(crew) != found)
        assert leftovers([tmp_path]) == []
        os.kill(owner.pid, signal.SIGSTOP)  # so that it starts no other one
        os.kill(guardian_of(tmp_path), signal.SIGKILL)
    until(lambda: leftovers([tmp_path]))
    (path,) = leftovers([tmp_path])
    (outcomes,) = put_back(path)
    assert not outcomes.failures
    assert state(crew) == found
    assert list(tmp_path.iterdir()) == []


def exchange(one: Path, other: Path) -> None:
    """Each has the place of the other; at no time is there none."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_fdcwd, rename_exchange = -100, 2
    if libc.renameat2(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange):
        raise OSError(ctypes.get_errno(), "renameat2")


class TestAFolderThatVanishes:
    def test_the_journal_is_written_anew_and_all_is_put_back_after_a_kill(
        self, crew: tuple[ThreadRef, ...], tmp_path: Path
    ) -> None:
        folder, found = tmp_path / "runtime" / "treadle", state(crew)
        with own(folder, ("nice",), crew):
            until(lambda: state(crew) != found)
            shutil.rmtree(folder.parent)  # as the system does with $XDG_RUNTIME_DIR at the last logout
            until(lambda: list(folder.glob("*.journal")))
        until(lambda: state(crew) == found and not list(folder.iterdir()))

    def test_a_journal_that_was_written_elsewhere_just_before_a_kill_is_found(
        self, crew: tuple[ThreadRef, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The owner had no time to report the new place."""
        folder, other, found = tmp_path / "treadle", tmp_path / "lasting", state(crew)
        monkeypatch.setenv("TREADLE_STATE", str(other))
        other.mkdir(mode=0o700)
        with own(folder, ("nice",), crew) as process:
            until(lambda: state(crew) != found)
            os.kill(process.pid, signal.SIGSTOP)
            for each in folder.glob("*.journal"):
                each.rename(other / each.name)
        until(lambda: state(crew) == found and not list(other.iterdir()))

    def test_one_that_somebody_else_made_in_its_place_is_not_used(
        self, crew: tuple[ThreadRef, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, other, found = tmp_path / "treadle", tmp_path / "lasting", state(crew)
        monkeypatch.setenv("TREADLE_STATE", str(other))
        with own(folder, ("nice",), crew):
            until(lambda: state(crew) != found)
            theirs = tmp_path / "theirs"
            theirs.mkdir()
            os.chown(theirs, NOBODY, NOBODY)
            exchange(theirs, folder)  # at once: in between its owner would make one itself
            until(lambda: list(other.glob("*.journal")))
            assert list(folder.iterdir()) == []
        until(lambda: state(crew) == found and not list(other.iterdir()))


class TestAnOwnerThatStandsStill:
    def test_real_time_is_taken_off_while_it_is_stopped_and_it_notices_when_it_goes_on(
        self, crew: tuple[ThreadRef, ...], base: str, tmp_path: Path
    ) -> None:
        with own_realtime(tmp_path, base, crew) as owner:
            assert owner.stdout is not None
            owner.send_signal(signal.SIGSTOP)
            until(lambda: ordinary(crew))
            owner.send_signal(signal.SIGCONT)
            assert owner.stdout.readline() == f"released: process {owner.pid} was stopped\n"
        assert f"process {owner.pid} was stopped" in (tmp_path / "errors").read_text()

    def test_real_time_is_taken_off_while_it_holds_its_interpreter_s_lock(
        self, crew: tuple[ThreadRef, ...], base: str, tmp_path: Path
    ) -> None:
        with own_realtime(tmp_path, base, crew) as owner:
            assert owner.stdin is not None
            owner.stdin.write("hang\n")
            owner.stdin.flush()
            until(lambda: ordinary(crew))
            assert owner.poll() is None
        assert "no heartbeat" in (tmp_path / "errors").read_text()

    def test_real_time_stays_while_heartbeats_come(
        self, crew: tuple[ThreadRef, ...], base: str, tmp_path: Path
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with Journal.open(tmp_path) as journal, ours, theirs:
            post = Post(journal.path, theirs, clock := Ticks())
            enforcer = Enforcer(kernel.make("rt", base=base), journal=journal)
            if enforcer.apply(enforcer.diff(crew, np.array([5.0, 6.0]))).failures:
                pytest.skip("no real-time priorities here")
            for _ in range(20):
                clock.now += 1.0
                ours.send(BEAT)
                post.hear()
                post.look_at_owner()
            assert not ordinary(crew)
            clock.now += 10.0
            post.look_at_owner()
            assert ordinary(crew)
            assert ours.recv(1024).startswith(OFF + b"no heartbeat")
            post.look_at_owner()  # what is off already is not reported again
            with pytest.raises(BlockingIOError):
                ours.recv(1024, socket.MSG_DONTWAIT)
            enforcer.restore()


class TestAGuardianThatDoesNotStart:
    @pytest.mark.parametrize("python", ["/bin/false", "/nowhere/python", "hangs", "breaks"])
    def test_it_is_one_clear_error_and_no_process_is_left(
        self, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replace_python(monkeypatch, tmp_path, python)
        with Journal.open(tmp_path / "state") as journal:
            with pytest.raises(EngineError, match="no module 'x'" if python == "breaks" else "guardian"):
                Guardian.start(journal)
            assert journal.keeper is None
        assert list((tmp_path / "state").iterdir()) == []
        assert not any(_is_running(int(path.name)) for path in (tmp_path / "pids").glob("*"))

    def test_one_that_can_not_be_started_again_ends_the_rounds(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Journal.open(tmp_path / "state") as journal:
            guardian = Guardian.start(journal)
            replace_python(monkeypatch, tmp_path, "/bin/false")
            os.kill(guardian.pid, signal.SIGKILL)

            def given_up() -> bool:
                try:
                    journal.tend()
                except EngineError as error:
                    return "guardian" in str(error)
                return False

            until(given_up)
            assert given_up()  # and from now on in every round


class TestTheOwnersEnd:
    def test_a_guardian_that_is_killed_is_followed_by_another(self, tmp_path: Path) -> None:
        with Journal.open(tmp_path) as journal:
            guardian = Guardian.start(journal)
            first = guardian.pid
            os.kill(first, signal.SIGKILL)

            def another() -> bool:
                journal.tend()
                return read(journal.path).guardian.pid != first

            until(another)
            assert read(journal.path).guardian.pid == guardian.pid
        assert list(tmp_path.iterdir()) == []

    def test_it_ignores_the_signals_that_ask_for_an_end(self, tmp_path: Path) -> None:
        with Journal.open(tmp_path) as journal:
            guardian = Guardian.start(journal)
            asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            until(lambda: all(_ignored(guardian.pid) >> (number - 1) & 1 for number in asking))
            for number in asking:
                os.kill(guardian.pid, number)
            assert _is_running(guardian.pid)
            assert os.getsid(guardian.pid) == guardian.pid
        assert not _is_running(guardian.pid)

    def test_it_is_above_all_real_time_threads_before_there_are_any(
        self, crew: tuple[ThreadRef, ...], base: str, tmp_path: Path
    ) -> None:
        with Journal.open(tmp_path) as journal:
            guardian = Guardian.start(journal)
            knob = kernel.make("rt", base=base)
            assert isinstance(knob, RealtimeKnob)
            enforcer = Enforcer(knob, journal=journal)
            assert os.sched_getscheduler(guardian.pid) == os.SCHED_OTHER
            outcomes = enforcer.apply(enforcer.diff(crew, np.array([5.0, 6.0])))
            enforcer.restore()
            knob.close()
            if outcomes.failures:
                pytest.skip(f"no real-time priorities here: {outcomes.failures[0]}")
            assert os.sched_getscheduler(guardian.pid) == os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
            assert os.sched_getparam(guardian.pid).sched_priority == 99

    def test_an_owner_that_ends_by_itself_but_puts_nothing_back_is_followed_up_too(
        self, crew: tuple[ThreadRef, ...], tmp_path: Path
    ) -> None:
        found = state(crew)
        with own(tmp_path, ("nice",), crew) as owner:
            until(lambda: state(crew) != found)
            owner.terminate()  # Python does nothing about it
            owner.wait()
        until(lambda: state(crew) == found)
        until(lambda: not list(tmp_path.iterdir()))


def _ignored(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
