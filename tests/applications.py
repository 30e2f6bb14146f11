"""A Spark application that knows nothing of Treadle, for tests that attach to it, and what the kernel says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

from support import LONG
from treadle import jars
from treadle.broker import Broker
from treadle.enforce.kernel import find_mount
from treadle.enforce.kernel.mounts import group_of
from treadle.linux.sched import get_attributes

SCRIPT = Path(__file__).with_name("spark_application.py")


class SparkProcess:
    """A driver in a process of its own, as its owner sees it: who it is, and queries that are started and stopped.

    As a context manager it is ended in good order; `kill` is faster.
    """

    def __init__(self, folder: Path, broker: Broker, topic: str, *settings: str, master: str = "local[16]") -> None:
        jars.fetch("spark-kafka")
        self.topic = topic
        with (folder / "application.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(folder), master, broker.bootstrap, topic, *settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
        self.told = self._answer()
        self.pid: int = self.told["pid"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=LONG)  # without more input it stops its queries, and ends
        except subprocess.TimeoutExpired:
            self.kill()

    def start(self, name: str, kind: str, seconds: int) -> str:
        """Start a query; its runId."""
        return self._order("start", name, kind, str(seconds))

    def stop(self, name: str) -> str:
        return self._order("stop", name)

    def work(self, group: str) -> None:
        """A job of the user's own, in a group that is called so."""
        self._order("work", group)

    def kill(self) -> None:
        for pid in (self.pid, self.told["python"]):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._process.communicate()

    def _order(self, *words: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        assert "run" in answer, answer
        return str(answer["run"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):  # an agent that is loaded into a JVM may say so on its output
                said: dict[str, Any] = json.loads(line)
                return said
        pytest.fail(f"the application ended with {self._process.wait(30)}")


def feed(broker: Broker, topic: str, rows: int) -> None:
    """Put rows into a topic."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(rows):
        producer.produce(topic, str(number))
    producer.flush()


class Standing(NamedTuple):
    """All that an enforcer could change of a thread."""

    start_time: int
    nice: int
    policy: int
    priority: int
    slice: int
    group: str
    resets: bool
    """Whether threads that it starts are ordinary ones, whatever it is itself."""


def standings(pid: int) -> dict[int, Standing]:
    """Of every thread of a process, straight from the kernel."""
    found: dict[int, Standing] = {}
    mount = find_mount()
    for tid in map(int, os.listdir(f"/proc/{pid}/task")):
        try:
            text = Path(f"/proc/{pid}/task/{tid}/stat").read_text()
            group = group_of(f"/proc/{pid}/task/{tid}/cgroup", mount) if mount else ""
            attributes = get_attributes(tid)
            resets = bool(os.sched_getscheduler(tid) & os.SCHED_RESET_ON_FORK)
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()
        found[tid] = Standing(
            int(fields[19]), int(fields[16]), int(fields[38]), int(fields[37]), attributes.runtime, group, resets
        )
    return found


def differences(before: dict[int, Standing], pid: int) -> dict[int, tuple[Standing, Standing]]:
    """Threads that are not as they were; one that was born since should be as its process is."""
    now = standings(pid)
    ordinary = before[pid]
    found: dict[int, tuple[Standing, Standing]] = {}
    for tid, seen in now.items():
        was = before.get(tid)
        if was is None or was.start_time != seen.start_time:
            was = ordinary._replace(start_time=seen.start_time)
        if seen != was:
            found[tid] = (was, seen)
    return found


class Group(NamedTuple):
    """All that an enforcer could change of a CPU group: the contents of its files, empty where it has none."""

    shares: str
    quota: str
    budget: str


def cpu_groups() -> dict[str, Group]:
    """Every CPU group of this machine."""
    mount = find_mount()
    if mount is None:
        return {}
    files = _FILES[mount.version]
    return {path: Group(*(text_of(f"{path}/{name}") for name in files)) for path, _, _ in os.walk(mount.point)}


_FILES = {
    1: ("cpu.shares", "cpu.cfs_quota_us", "cpu.rt_runtime_us"),
    2: ("cpu.weight", "cpu.max", "cgroup.type"),
}


def text_of(path: str) -> str:
    """What a file of the kernel says; nothing if it is not there."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def groups_left() -> list[str]:
    """CPU groups that this process has made by attaching, or one that has ended since."""
    mount = find_mount()
    if mount is None:
        return []
    found = [path for path in Path(mount.point).glob("**/treadle-[0-9]*") if path.is_dir()]
    owners = {path: int(path.name.split("-")[1]) for path in found}
    return [str(path) for path, pid in owners.items() if pid == os.getpid() or not Path(f"/proc/{pid}").exists()]


@contextmanager
def feeding(broker: Broker, topic: str, rate: int) -> Iterator[None]:
    """So many rows a second into a topic, all the time."""
    from confluent_kafka import Producer

    producer, done = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5}), threading.Event()

    def write() -> None:
        while not done.wait(0.1):
            for number in range(rate // 10):
                producer.produce(topic, str(number))
            producer.poll(0)

    producer.produce(topic, "0")
    assert producer.flush(LONG) == 0
    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()
        producer.flush(10)
