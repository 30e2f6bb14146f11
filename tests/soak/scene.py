"""What happens in the soak: applications whose batches last a second, and what is stopped, started and killed.

`treadle attach` runs as a process of its own, with a priority for each query that no other has.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from applications import SparkProcess
from clusters import daemon, listens
from soak import witness
from soak.judge import Rules
from support import until
from treadle.broker import Broker, free_port
from treadle.decide.transform import NICE_STEP
from treadle.engines.spark.jvms import EXECUTOR

PERIOD = 0.05
TREADLE = [sys.executable, "-c", "from treadle.cli import main; main()"]
LOWEST, HIGHEST = 0, 39
"""Ranks from one to the other are nice 19 to -20, one for one."""
LOCAL = {"anchor": ("chain", 0), "local-chain": ("chain", 4), "local-count": ("count", 9), "local-micro": ("micro", 13)}
CLUSTER = {"far-chain": ("chain", 23), "far-count": ("count", 27), "far-micro": ("micro", 31)}
RULES = Rules(0, 19 - HIGHEST, {name: 19 - priority for name, (_, priority) in {**LOCAL, **CLUSTER}.items()})
RATE = 50
"""Rows a second."""
BATCH = 1
"""Seconds."""
PAUSE = 2.0
"""Seconds between two things that happen, on the average."""
EXECUTORS = 2


class Scene:
    """One application with its queries; `name` is what `treadle attach` finds it by."""

    def __init__(self, name: str, queries: Iterable[str], folder: Path, started: SparkProcess) -> None:
        self.name = name
        self.folder = folder
        self.queries = list(queries)
        self._started = started
        self._running: set[str] = set()
        for query in self.queries:
            self.start(query)

    @property
    def processes(self) -> list[int]:
        """Those in which there is a witness, and that are there."""
        pids = [int(file.stem) for file in self.folder.glob(f"*{witness.SUFFIX}")]
        return [pid for pid in pids if pid == self._started.pid or _is_executor(pid)]

    @property
    def executors(self) -> list[int]:
        return [pid for pid in self.processes if pid != self._started.pid]

    def all_at_work(self) -> bool:
        """Whether each query has had a task."""
        told = [file.read_text() for file in self.folder.glob(f"*{witness.SUFFIX}")]
        return all(any(f"\t{query}\n" in text for text in told) for query in self.queries)

    def start(self, query: str) -> None:
        kind = {**LOCAL, **CLUSTER}[query][0]
        self._started.start(query, kind, BATCH)
        self._running.add(query)

    def stop(self, query: str) -> None:
        with suppress(AssertionError):  # it may have failed when its executor was killed
            self._started.stop(query)
        self._running.discard(query)

    def turn(self, chance: random.Random) -> str:
        """Stop a query, start one that is stopped, or restart one."""
        query = chance.choice([query for query in self.queries if query != "anchor"])
        if query not in self._running:
            self.start(query)
            return f"started {query}"
        self.stop(query)
        if chance.random() < 0.5:
            return f"stopped {query}"
        self.start(query)
        return f"restarted {query}"

    def kill_executor(self, chance: random.Random) -> str:
        """And start again what has failed by it, as a supervisor would."""
        pid = chance.choice(self.executors)
        os.kill(pid, signal.SIGKILL)
        until(lambda: len(self.executors) == EXECUTORS)
        for query in self.queries:
            self.stop(query)
            self.start(query)
        return f"killed executor {pid}"


def _is_executor(pid: int) -> bool:
    """Ids are given out again, also to threads of others."""
    try:
        status, command = (Path(f"/proc/{pid}/{file}").read_text() for file in ("status", "cmdline"))
        return f"Tgid:\t{pid}\n" in status and EXECUTOR in command
    except OSError:
        return False


@contextmanager
def local(folder: Path, broker: Broker, topic: str, classes: Path, name: str) -> Iterator[Scene]:
    """In local mode, with the query that stays."""
    folder.mkdir()
    config = [f"spark.app.name={name}", *witness.settings(classes, folder)]
    with SparkProcess(folder, broker, topic, *config) as started:
        yield Scene(name, LOCAL, folder, started)


@contextmanager
def cluster(folder: Path, broker: Broker, topic: str, classes: Path, name: str) -> Iterator[Scene]:
    """On a master and two workers of their own."""
    folder.mkdir()
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(daemon(folder, "master.Master", "--port", str(port)))
        until(lambda: listens(port))
        master = f"spark://127.0.0.1:{port}"
        for number in range(EXECUTORS):
            size = ("--cores", "5", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"))
            stack.enter_context(daemon(folder, "worker.Worker", *size, master))
        config = ["spark.executor.memory=512m", "spark.executor.cores=5", f"spark.app.name={name}"]
        config += witness.settings(classes, folder)
        started = stack.enter_context(SparkProcess(folder, broker, topic, *config, master=master))
        yield Scene(name, CLUSTER, folder, started)


class Attach:
    """`treadle attach`, from its first change on."""

    def __init__(self, names: str, log: Path) -> None:
        words = ["attach", "--name", names, "--period", f"{PERIOD * 1e3:g}ms", "--policy", "user-priority", "--json"]
        words += ["--enforce", "nice:low=-20,high=19"]
        for query, rank in {
            "driver": HIGHEST,
            **{name: rank for name, (_, rank) in {**LOCAL, **CLUSTER}.items()},
        }.items():
            words += ["--priority", f"{query}={NICE_STEP ** (rank - 19):.9g}"]
        self._log = log.open("w+")
        self.process = subprocess.Popen([*TREADLE, *words], stdout=self._log, stderr=subprocess.STDOUT)

    def begun(self) -> bool:
        assert self.process.poll() is None, self.said()
        return Path(self._log.name).stat().st_size > 0

    def said(self) -> str:
        return Path(self._log.name).read_text()

    def kill(self) -> None:
        """If it is still there."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def end(self) -> dict[str, Any]:
        """Its state at the end."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.said()[-2000:]
        status = next(json.loads(line) for line in reversed(self.said().splitlines()) if '"rounds"' in line)
        return {key: status[key] for key in ("rounds", "skipped", "changes", "round_ms", "failures")}


def play(scenes: list[Scene], seconds: float, chance: random.Random) -> list[str]:
    """One thing after the other, for so long."""
    told, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        told.append(chance.choice(scenes).turn(chance))
        time.sleep(PAUSE * (0.5 + chance.random()))
    return told
