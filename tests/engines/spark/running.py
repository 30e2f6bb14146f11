"""A real Spark application, run apart by a script that knows nothing of Treadle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import LONG
from treadle.broker import Broker

SCRIPT = Path(__file__).with_name("spark_application.py")


class Attached:
    """The application as its owner sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.facts = self._hear()
        self.pid = int(self.facts["pid"])

    def start(self, name: str, kind: str, seconds: int) -> str:
        """Start a query; its runId."""
        return self._order("start", name, kind, str(seconds))

    def stop(self, name: str) -> str:
        return self._order("stop", name)

    def _order(self, *words: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        answer = self._hear()
        assert "run" in answer, answer
        return str(answer["run"])

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):  # an agent that is loaded into a JVM may say so on its output
                said: dict[str, Any] = json.loads(line)
                return said
        pytest.fail(f"the application ended with {self._process.wait(30)}")


@contextmanager
def application(folder: Path, master: str, broker: Broker, topic: str, *config: str) -> Iterator[Attached]:
    command = [sys.executable, str(SCRIPT), str(folder), master, broker.bootstrap, topic, *config]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "application.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment
        )
    try:
        yield Attached(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()  # then it stops its queries, and ends
        try:
            process.wait(LONG)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        process.stdout.close()
