"""What the witness inside of an application's JVMs has written down: who served whom, and when.

Nothing of Treadle's is used to know it. See `Witness.java`, a plugin that Spark itself loads.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from treadle import jars

SOURCE = Path(__file__).with_name("Witness.java")
SUFFIX = ".witness"
PACE = 0.1
"""Seconds between two looks."""
OTHERS = "(engine)"
"""Who is served by a thread that is of no single query."""
SHARED = "(shared)"
NOBODY = "(nobody)"

_POOLED = re.compile(r"Executor task (?:launch|idle) worker")
_TASK = re.compile(r"Executor task launch worker for task .*\(TID (\d+)\)")
_SHUFFLE = re.compile(r"(?:streaming-shuffle-(?:writer|reader|task-discovery-thread|client-creation\S*?)|"
                      r"time-based-flush-for-shuffle-writer)-(\d+)-\d+")  # fmt: skip
_SHARED = re.compile(r"kafka-producer-network-thread")


class Span(NamedTuple):
    """From `begin` to `end` (seconds of the monotonic clock) a thread served `whom`, without a break."""

    begin: float
    end: float
    whom: str
    pooled: bool
    """Whether it is a thread that runs tasks, now of this and then of that query."""


def build(folder: Path) -> Path:
    """Compile it: what to put on the class path."""
    import pyspark

    folder.mkdir()
    compiler = Path(jars.java()).resolve().with_name("javac")
    path = f"{Path(pyspark.__file__).parent}/jars/*"
    command = [str(compiler), "-nowarn", "-Xlint:none", "--release", "17", "-d", str(folder), "-cp", path, str(SOURCE)]
    subprocess.run(command, check=True)
    return folder


def settings(classes: Path, folder: Path) -> list[str]:
    """What an application is started with, so that Spark loads it."""
    places = [f"spark.{where}.extraClassPath={classes}" for where in ("driver", "executor")]
    return [*places, "spark.plugins=Witness", f"spark.witness.folder={folder}"]


class Truth(NamedTuple):
    """Of some applications."""

    spans: dict[tuple[int, int], list[Span]]
    """By process and thread, in order of time. Between two spans nobody can tell."""
    looks: dict[int, list[tuple[float, float]]]
    """By process, when a witness of its application began to look at the threads, and how long that JVM took for it."""


def read(*folders: Path) -> Truth:
    """One folder for each application: shuffles are numbered anew in each."""
    truth = Truth({}, {})
    for folder in folders:
        logs = [_Log(file) for file in sorted(folder.glob(f"*{SUFFIX}"))]
        shuffles = {number: query for log in logs for number, query in log.shuffles.items()}
        truth.spans.update({(log.pid, tid): found for log in logs for tid, found in log.spans(shuffles)})
        looks = sorted(look for log in logs for look in log.delays())
        truth.looks.update({log.pid: looks for log in logs})
    return truth


@dataclass
class _Thread:
    """What was seen of one thread: its names by look, and its tasks."""

    names: list[tuple[int, int, str]] = field(default_factory=list)
    """First and last look with this name."""
    tasks: list[tuple[float, float, int, str]] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    """When it was seen to have put a task's name off."""


class _Log:
    """One process."""

    def __init__(self, file: Path) -> None:
        self.pid = int(file.stem)
        self.looks: list[float] = []
        self.took: list[float] = []
        self.shuffles: dict[int, str] = {}
        self._threads: dict[int, _Thread] = {}
        current: dict[int, tuple[int, str]] = {}
        running: dict[int, tuple[float, int, str]] = {}
        last = 0.0
        for line in file.read_text().splitlines():
            words = line.split("\t")
            if len(words) < 2 or not words[0].isdecimal():
                continue
            last = time = int(words[0]) / 1e9
            self._read(time, words[1:], current, running)
        for tid in list(current):
            self._rename(tid, current, None)
        for tid, (begin, number, query) in running.items():
            self._thread(tid).tasks.append((begin, last, number, query))

    def _read(
        self,
        time: float,
        words: list[str],
        current: dict[int, tuple[int, str]],
        running: dict[int, tuple[float, int, str]],
    ) -> None:
        match words:
            case ["look", took]:
                self.looks.append(time)
                self.took.append(int(took) / 1e9)
            case ["name", tid, name]:
                self._rename(int(tid), current, name)
            case ["gone", tid]:
                self._rename(int(tid), current, None)
            case ["task", tid, number, query]:
                running[int(tid)] = (time, int(number), query)
            case ["done", tid, number]:
                begin, _, query = running.pop(int(tid))
                self._thread(int(tid)).tasks.append((begin, time, int(number), query))
            case ["idle", tid]:
                self._thread(int(tid)).idle.append(time)
            case ["shuffle", number, query]:
                self.shuffles[int(number)] = query
            case ["failed", why]:
                raise AssertionError(f"the witness in process {self.pid} failed: {why}")

    def delays(self) -> Iterator[tuple[float, float]]:
        """How long looks took; one after which the next came late took so long, too."""
        for number, (look, took) in enumerate(zip(self.looks, self.took, strict=True)):
            following = self.looks[number + 1] if number + 1 < len(self.looks) else look
            yield look, max(took, following - look - PACE)

    def _thread(self, tid: int) -> _Thread:
        return self._threads.setdefault(tid, _Thread())

    def _rename(self, tid: int, current: dict[int, tuple[int, str]], name: str | None) -> None:
        """At the newest look it has another name than at the one before."""
        look = len(self.looks) - 1
        if tid in current:
            since, before = current.pop(tid)
            self._thread(tid).names.append((since, look if name is None and look == since else look - 1, before))
        if name is not None:
            current[tid] = (look, name)

    def spans(self, shuffles: dict[int, str]) -> Iterator[tuple[int, list[Span]]]:
        for tid, thread in self._threads.items():
            pooled = bool(thread.tasks) or any(_POOLED.match(name) for _, _, name in thread.names)
            found = self._of_pooled(thread) if pooled else self._of_other(thread, shuffles)
            yield tid, sorted(found)

    def _of_other(self, thread: _Thread, shuffles: dict[int, str]) -> Iterator[Span]:
        for first, last, name in thread.names:
            whom: str | None = OTHERS
            if found := _SHUFFLE.match(name):
                whom = shuffles.get(int(found[1]))
            elif _SHARED.match(name):
                whom = SHARED
            if whom is not None:
                yield Span(self.looks[first], self.looks[last], whom, pooled=False)

    def _of_pooled(self, thread: _Thread) -> Iterator[Span]:
        """Tasks begin where their name is seen or where they say so, and end where they say so."""
        named: dict[int, float] = {}
        for first, _, name in thread.names:
            if found := _TASK.match(name):
                named[int(found[1])] = self.looks[first]
        tasks = sorted((min(begin, named.get(number, begin)), end, query) for begin, end, number, query in thread.tasks)
        for begin, end, query in tasks:
            yield Span(begin, end, query, pooled=True)
        for first, last, name in thread.names:
            if not _TASK.match(name):
                yield from self._idle(first, last, tasks, thread.idle)

    def _idle(self, first: int, last: int, tasks: list[tuple[float, float, str]], idle: list[float]) -> Iterator[Span]:
        """Looks in a row that saw it idle, and between which it did nothing; from when it had no task's name any more.

        That is some time after its last task has said that it ends.
        """
        begin = first
        for look in range(first, last + 1):
            if look == last or _busy(self.looks[look], self.looks[look + 1], tasks):
                ended = max((end for _, end, _ in tasks if end <= self.looks[begin]), default=0.0)
                before = [time for time in idle if ended <= time <= self.looks[begin]]
                since = self.looks[begin]
                if begin and before and before[-1] >= self.looks[begin - 1]:
                    since = before[-1]
                yield Span(since, self.looks[look], NOBODY, pooled=True)
                begin = look + 1


def _busy(since: float, until: float, tasks: list[tuple[float, float, str]]) -> bool:
    return any(begin < until and end > since for begin, end, _ in tasks)
