"""`treadle attach` killed at moments of chance, by every enforcer: a second later nothing tells that it was there.

What is compared is read straight from the kernel: every thread of the application, and every CPU group of the machine.
"""

from __future__ import annotations

import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from applications import Group, SparkProcess, Standing, cpu_groups, differences, feed, standings, text_of
from support import LONG, named, until
from treadle.broker import Broker
from treadle.enforce import kernel
from treadle.enforce.recovery import journal_book

SHORT = 10
"""So many kills show little, but they show it beside whatever else the machine does: then the median must do."""
KILLS = int(os.environ.get("TREADLE_KILLS", str(SHORT)))
SEED = int(os.environ.get("TREADLE_SEED", str(time.time_ns() % 1_000_000)))
SOON = 1.0
"""Seconds within which everything is as it was."""
TREADLE = [sys.executable, "-c", "from treadle.cli import main; main()"]
ENFORCERS = (
    "nice",
    "cgroup",
    "rt",
    "slice",
    "quota",
    "cgroup+nice",
    "rt:fifo=yes,helpers=no",
    "nice+slice",
    "cgroup:by=query/operator+slice:batch=no",
    "cgroup+nice+slice+quota",
)
NEEDS = {"nice": "nice", "cgroup": "cgroup", "rt": "real-time", "slice": "time slice", "quota": "quota"}
WORKS = {fact.what for fact in kernel.facts() if fact.works}
POSSIBLE = [each for each in ENFORCERS if all(NEEDS[part.partition(":")[0]] in WORKS for part in each.split("+"))]


@pytest.fixture(scope="module")
def target(
    broker: Broker, jolokia_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkProcess]:
    """The query `high` as anybody writes it, and `low` by the Pipeline API in its realtime layout; short batches."""
    name = named("kills")
    feed(broker, name, 200)
    started = SparkProcess(tmp_path_factory.mktemp("kills"), broker, name, f"spark.app.name={name}")
    started.start("high", "chain", 2)
    started.start("low", "pipeline", 2)
    yield started
    started.kill()


class Found:
    """How everything was."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._threads: dict[int, Standing] = standings(pid)
        self._groups: dict[str, Group] = cpu_groups()

    def changed(self) -> list[object]:
        """What is not so any more: threads, and groups that came, went, or have other shares, quotas and budgets."""
        groups = cpu_groups()
        paths = [path for path in self._groups.keys() | groups.keys() if not self._is_of_another(path)]
        return [
            *differences(self._threads, self._pid).items(),
            *((path, self._groups.get(path), groups.get(path))
              for path in paths if self._groups.get(path) != groups.get(path)),
        ]  # fmt: skip

    def _is_of_another(self, path: str) -> bool:
        """Whether somebody else has made this group and still runs, or has threads of another process in it."""
        made = re.search(r"/treadle-(\d+)", path)
        if made is not None and Path(f"/proc/{made[1]}").exists():
            return True
        there = {pid for folder, _, _ in os.walk(path) for pid in text_of(f"{folder}/cgroup.procs").split()}
        return "/treadle" in path and bool(there - {str(self._pid)})


@pytest.mark.skipif(not POSSIBLE, reason="this user may not schedule anything")
def test_everything_is_as_it_was_within_a_second_of_a_kill(
    target: SparkProcess, own_journals: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("TREADLE_SEED", SEED)
    chance = random.Random(SEED)
    first = chance.randrange(len(POSSIBLE))
    times: list[float] = []
    slow: list[str] = []
    for number in range(KILLS):
        enforce = POSSIBLE[(first + number) % len(POSSIBLE)]
        took, late = _attach_and_kill(target.pid, enforce, chance)
        times.append(took)
        if took > SOON:
            slow.append(f"kill {number} of TREADLE_SEED={SEED} by {enforce}: after {took:.2f} s; after {SOON} s {late}")
        # One that was killed before its guardian was there had changed nothing: its journal waits for the next attach.
        until(lambda: not any(journal_book.read(path).kept for path in own_journals.glob("*.journal")))
    record_property("median_s", statistics.median(times))
    record_property("longest_s", max(times))
    assert statistics.median(times) < SOON, slow
    assert not slow or KILLS == SHORT, slow


@pytest.mark.skipif(not {"nice", "cgroup"} <= WORKS, reason="this user may not schedule anything")
@pytest.mark.usefixtures("own_journals")
def test_the_groups_of_rules_are_as_they_were_soon_after_a_kill(target: SparkProcess) -> None:
    rules = ["--rule", "high: policy=fcfs, priority=10, period=100ms", "--rule", "*: policy=downstream-first"]
    for enforce in ("cgroup+nice", "cgroup"):
        _attach_and_kill(target.pid, enforce, random.Random(1), rules)  # after the first change


def _attach_and_kill(
    pid: int, enforce: str, chance: random.Random, more: Sequence[str] = ()
) -> tuple[float, list[object]]:
    """Kill it some time after its first change, or before; the seconds until everything was as it had been.

    With what was not so after a second.
    """
    found = Found(pid)
    words = ["attach", "--pid", str(pid), "--enforce", enforce, "--priority", "high=10"]
    words += ["--quota", "*low=0.5"] if "quota" in enforce else []
    words += more
    with subprocess.Popen([*TREADLE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        if chance.random() < 0.7:
            assert command.stdout.readline(), command.communicate()[1]
            time.sleep(chance.random() * 0.3)
        else:
            time.sleep(chance.random())
        assert command.poll() is None, command.communicate()[1]
        command.kill()
        killed = time.monotonic()
    late: list[object] = []
    while changed := found.changed():
        took = time.monotonic() - killed
        late = late or changed if took > SOON else []
        assert took < LONG, changed
    return time.monotonic() - killed, late
