"""The driver is killed at random moments, JVM and all, and started again: every row comes out exactly once.

`TREADLE_CRASHES` says how often (1), `TREADLE_SEED` repeats the moments of an earlier run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle import jars
from treadle.broker import Broker

CRASHES = int(os.environ.get("TREADLE_CRASHES", "1"))
SEED = int(os.environ.get("TREADLE_SEED", str(random.SystemRandom().randrange(10**6))))
PER_LIFE = 1000
"""Rows that each start adds: more than it can do before it is killed."""
LONGEST = 240.0


@pytest.mark.skipif("TREADLE_SOAK" not in os.environ, reason="benchmarks/soak.py kills 20 of each kind")
def test_embedded_channels_lose_and_double_nothing_when_the_driver_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "embedded"
    end = crash(folder, lambda first, last: None, ())
    assert came_out(folder) == dict.fromkeys(range(end), 1)


@pytest.mark.skipif("TREADLE_CRASHES" not in os.environ, reason="half a minute each: make soak")
def test_kafka_channels_lose_and_double_nothing_when_the_driver_is_killed(tmp_path: Path, broker: Broker) -> None:
    from confluent_kafka import Producer

    jars.fetch("spark-kafka")
    folder = tmp_path / f"crash-{SEED}"
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def fill(first: int, last: int) -> None:
        for a in range(first, last):
            producer.produce(f"{folder.name}-numbers", json.dumps({"a": a}))
        assert producer.flush(60) == 0

    end = crash(folder, fill, (broker.bootstrap,))
    assert came_out(folder) == dict.fromkeys(range(end), 1)


@pytest.mark.skipif("TREADLE_SOAK" not in os.environ, reason="half a minute")
def test_a_kill_during_a_reload_leaves_a_folder_for_the_old_or_the_new_version(tmp_path: Path) -> None:
    rng, rows = random.Random(SEED), 0
    folder = tmp_path / "reload"
    folder.mkdir()
    for _ in range(max(CRASHES, 3)):
        rows += PER_LIFE
        driver = start_fitting(folder, rows, ())
        try:
            time.sleep(rng.uniform(0.0, 6.0))  # a random moment is what this is about
        finally:
            kill(driver)
    driver = start_fitting(folder, rows, ("stay",))
    try:
        assert driver.wait(LONGEST) == 0, said(folder)
    finally:
        kill(driver)
    came = [a for file in (folder / "out").glob("*.json") for a in json.loads(file.read_text())]
    assert sorted(came) == list(range(rows))


def start_fitting(folder: Path, up_to: int, arguments: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start the old version, or the new one if the folder is not of the old one any more: either must start."""
    for version in ("old", "new"):
        before = said(folder).count("running\n") if (folder / "log").exists() else 0
        driver = start(folder, up_to, (version, *arguments), "reload_pipeline.py")
        until = time.monotonic() + LONGEST
        while said(folder).count("running\n") == before and driver.poll() is None:
            assert time.monotonic() < until, said(folder)
            time.sleep(0.02)
        if driver.poll() is None:
            return driver
        assert "another graph" in said(folder).splitlines()[-1], said(folder)
    raise AssertionError(said(folder))


def crash(folder: Path, fill: Callable[[int, int], None], arguments: tuple[str, ...]) -> int:
    """Kill the pipeline again and again, then let it finish; how many rows went in."""
    rng = random.Random(SEED)
    folder.mkdir(parents=True)
    for life in range(1, CRASHES + 1):
        fill((life - 1) * PER_LIFE, life * PER_LIFE)
        driver = start(folder, life * PER_LIFE, arguments)
        try:
            wait_until_it(rng.choice(("starts", "runs", "works", "works")), driver, folder)
            time.sleep(rng.uniform(0.0, 3.0))  # a random moment is what this is about
        finally:
            kill(driver)
    driver = start(folder, CRASHES * PER_LIFE, arguments)
    try:
        assert driver.wait(LONGEST) == 0, said(folder)
    finally:
        kill(driver)
    return CRASHES * PER_LIFE


def came_out(folder: Path) -> dict[int, int]:
    """Number -> how often it is in the files."""
    counts: dict[int, int] = {}
    for file in (folder / "out").glob("*.json"):
        for row in json.loads(file.read_text()):
            assert row == {"a": row["a"], "twice": 2 * row["a"], "tag": f"n{row['a']}"}
            counts[row["a"]] = counts.get(row["a"], 0) + 1
    return dict(sorted(counts.items()))


def start(
    folder: Path, up_to: int, arguments: tuple[str, ...], name: str = "crash_pipeline.py"
) -> subprocess.Popen[bytes]:
    """In a process group of its own, so that this and nothing else can be killed with it."""
    script = Path(__file__).with_name(name)
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(script), str(folder), str(up_to), *arguments],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,
        )


def wait_until_it(does: str, driver: subprocess.Popen[bytes], folder: Path) -> None:
    """At once, or until it says that its hops are started, or until a batch has come out."""

    def seen() -> int:
        return said(folder).count("running\n") if does == "runs" else len(list((folder / "out").glob("*.json")))

    before = seen()
    until = time.monotonic() + LONGEST
    while does != "starts" and seen() == before:
        assert driver.poll() is None, said(folder)
        assert time.monotonic() < until, said(folder)
        time.sleep(0.02)


def kill(driver: subprocess.Popen[bytes]) -> None:
    """The whole group, and wait until all of it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)
    until = time.monotonic() + 30
    while alive(driver.pid):
        assert time.monotonic() < until
        time.sleep(0.01)


def alive(group: int) -> bool:
    """Whether a process of the group is left; one that has ended and waits for its parent is not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group, *_ = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state not in "ZX":
            return True
    return False


def said(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")


@pytest.fixture(autouse=True)
def _seed_is_told() -> None:
    sys.stdout.write(f"TREADLE_SEED={SEED}\n")
