"""Agents are loaded into JVMs of other users, and of those with users and files of their own."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from treadle.engines.spark.agent.agents import Agent, jar
from treadle.jvm.attach import execute

Process = subprocess.Popen[bytes]
NOBODY = 65534


def test_an_agent_is_loaded_into_the_jvm_of_another_user(root: None, start: Callable[..., Process]) -> None:
    agent = Agent(start(user=NOBODY, group=NOBODY, extra_groups=[]).pid)
    assert "treadle-agent" in {told.name for told in agent.threads.values()}
    agent.close()
    contents = jar().contents
    copy = Path(f"/tmp/treadle-{hashlib.sha256(contents).hexdigest()[:12]}-{NOBODY}.jar")
    about = copy.stat()
    assert (copy.read_bytes(), about.st_uid, about.st_mode & 0o777) == (contents, NOBODY, 0o600)
    copy.unlink()


def test_an_agent_is_loaded_into_a_jvm_with_users_of_its_own(spaced: Process) -> None:
    assert "java.specification.version=" in execute(spaced.pid, "properties")
    agent = Agent(spaced.pid)
    assert "treadle-agent" in {told.name for told in agent.threads.values()}
    agent.close()


def test_an_agent_is_loaded_into_a_container(container: Process) -> None:
    with open(f"/proc/{container.pid}/task/{container.pid}/children") as file:
        (inside,) = map(int, file.read().split())
    agent = Agent(inside)
    assert "treadle-agent" in {told.name for told in agent.threads.values()}
    agent.close()
