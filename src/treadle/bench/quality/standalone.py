"""A standalone Spark cluster on this machine: a master, and workers that each have cores of their own.

It is for benchmarks that need several workers. A worker has more task slots than cores, so that slots don't limit what
runs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Self

from treadle import jars
from treadle.broker import free_port
from treadle.errors import EngineError

HOST = "127.0.0.1"
SLOTS = 4
MEMORY = "1g"
PATIENCE = 120.0
_OPENS = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")


class Standalone:
    """The master, which starts with the object, and the workers that are added to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.master = f"spark://{HOST}:{self._port}"
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._master = self._start("master.Master", ("--port", str(self._port)), {}, None)
        limit = time.monotonic() + PATIENCE
        while not _listens(self._port):
            if time.monotonic() > limit or self._master.poll() is not None:
                self.close()
                raise EngineError("Spark's master does not start", remedy=f"see {folder / 'daemons.log'}")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, name: str, cores: Collection[int] | None = None) -> None:
        """Start a worker, limited to these cores if they are given."""
        size = ("--cores", str(SLOTS), "--memory", MEMORY, "--work-dir", str(self._folder / name))
        self._workers[name] = self._start("worker.Worker", (*size, self.master), {"TREADLE_WORKER": name}, cores)

    def kill(self, name: str) -> None:
        """Kill a worker and all that it has started, like a power failure of its machine."""
        _end(self._workers.pop(name), signal.SIGKILL)

    def close(self) -> None:
        for worker in self._workers.values():
            _end(worker, signal.SIGTERM)
        _end(self._master, signal.SIGTERM)

    def _start(
        self, kind: str, arguments: tuple[str, ...], extra: dict[str, str], cores: Collection[int] | None
    ) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS]
        command = [jars.java(), "-Xmx256m", *opens, "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{kind}"]
        command += ["--host", HOST, "--webui-port", "0", *arguments]
        known = {"SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable, "SPARK_SCALA_VERSION": "2.13"}
        settings = {**os.environ, **known, "SPARK_HOME": str(home), **extra}
        before = os.sched_getaffinity(0)
        try:
            if cores is not None:
                os.sched_setaffinity(0, cores)  # children inherit it
            with (self._folder / "daemons.log").open("ab") as out:
                return subprocess.Popen(
                    command, stdout=out, stderr=out, cwd=self._folder, env=settings, start_new_session=True
                )
        finally:
            os.sched_setaffinity(0, before)


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """End a process and its session, which includes the executors of a worker."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False
