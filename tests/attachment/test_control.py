"""What an attachment does before it begins, on a real JVM that looks like a driver whose UI is off."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from treadle import jars, jvm
from treadle.attachment import attach, targets
from treadle.attachment.targets import Claims
from treadle.enforce.kernel import Fact
from treadle.errors import ConfigError, EngineError, RightsError, TreadleError

DRIVER = """
public class Driver {
    public static void main(String[] arguments) throws Exception {
        for (String name : new String[] {"dag-scheduler-event-loop", "executor-heartbeater"}) {
            Thread thread = new Thread(java.util.concurrent.locks.LockSupport::park, name);
            thread.setDaemon(true);
            thread.start();
        }
        System.out.println("ready");
        while (System.in.read() >= 0) {
        }
    }
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The process id of a JVM with the threads by which a driver of local mode is known, and into which nobody has
    loaded anything yet."""
    source = tmp_path_factory.mktemp("driver") / "Driver.java"
    source.write_text(DRIVER)
    command = [jars.java(), "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", str(source)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def loaded(pid: int) -> set[str]:
    """What a JVM has of Treadle: the files that it keeps open, and its threads."""
    found = {thread.name for thread in jvm.dump(pid, frames=0)}
    for file in os.scandir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            found.add(os.readlink(file.path))
    return {name for name in found if "treadle" in name or "jolokia" in name}


def test_nothing_is_loaded_before_everything_is_checked(
    driver: int, own_journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="'multi-class' needs head_age and global_rate, which only an agent can"):
        attach(driver, policy="multi-class", enforce="nice", agent=False)
    monkeypatch.setattr(
        "treadle.attachment.checks.kernel.facts", lambda _: [Fact("nice", False, "not allowed", "ask for it", True)]
    )
    with pytest.raises(RightsError, match="not allowed"):
        attach(driver)
    monkeypatch.setattr("treadle.attachment.checks.kernel.facts", lambda _: [Fact("nice", True, "")])
    claims = Claims()
    claims.take(targets.find(driver, agent=True).values())
    with pytest.raises(EngineError, match="another treadle process is attached"):
        attach(driver, enforce="nice")
    claims.release()
    assert loaded(driver) == set()
    assert not own_journals.exists()
    with pytest.raises(TreadleError, match="no agent can be loaded"):  # it drives nothing, as the agent finds out
        attach(driver)
    assert loaded(driver), "and that is how it is seen that one was loaded"
