"""Stages at real-time priorities that starve what they wait for: a real application, attached to as anybody would."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import treadle
from applications import SparkProcess, differences, groups_left, standings
from support import named, until
from treadle import jars
from treadle.attachment import Attachment
from treadle.broker import Broker
from treadle.cli.attach_tables import title
from treadle.enforce import kernel

pytestmark = pytest.mark.usefixtures("own_journals")
JAVA = Path(__file__).with_name("Livelock.java")
LONG_ROW = 0.25
"""CPU seconds that an ordinary thread needs for a row which a stage waits for."""
SOON = 2.0
"""Seconds within which a livelock ends."""
LONGER = pytest.mark.skipif("TREADLE_SOAK" not in os.environ, reason="it takes its time: set TREADLE_SOAK=1")


class Stuck:
    """An application on one core with a query of two stages, of which the second polls for what others bring."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        compiler = Path(jars.java()).resolve().with_name("javac")
        subprocess.run([compiler, "-d", folder, JAVA], check=True)
        self._notes = folder / "notes"
        self._broker, self.topic = broker, named("livelock")
        settings = (
            f"spark.app.name={self.topic}",
            f"spark.driver.extraClassPath={folder}",
            f"spark.driver.extraJavaOptions=-Dlivelock={self._notes}",
        )
        self.feed(0.0)
        self.process = SparkProcess(folder, broker, self.topic, *settings)
        self.pid = self.process.pid
        core = max(os.sched_getaffinity(0))
        for tid in os.listdir(f"/proc/{self.pid}/task"):
            os.sched_setaffinity(int(tid), {core})
        self.process.start("polls", "livelock", 300)
        until(self.is_warm)

    def feed(self, *rows: float) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._broker.bootstrap})
        for row in rows:
            producer.produce(self.topic, str(row))
        assert producer.flush(60) == 0

    def times(self, what: str) -> list[float]:
        """When rows were begun, or done."""
        notes = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [float(note.split()[1]) for note in notes if note.startswith(what)]

    def moves(self, attachment: Attachment) -> bool:
        """Whether it is known how much is taken from Kafka."""
        self.feed(0.0)
        return any(row["query"] == "polls" and row["cost"] is not None for row in attachment.status()["rows"])

    def is_warm(self) -> bool:
        """Whether it has worked for a while: a cold JVM at real-time priority has no time left for its MBeans."""
        self.feed(0.001)
        return len(self.times("done")) > 20

    def settle(self) -> None:
        """Wait for what it has begun."""
        until(lambda: len(self.times("done")) == len(self.times("begun")))

    @property
    def realtime(self) -> bool:
        """Whether any of its threads is."""
        return any(standing.policy == os.SCHED_RR for standing in standings(self.pid).values())


@pytest.fixture(scope="module")
def stuck(broker: Broker, jolokia_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stuck]:
    fact = next(fact for fact in kernel.facts() if fact.what == "real-time")
    if not fact.works:
        pytest.skip(f"{fact.why} ({fact.remedy})")
    made = Stuck(tmp_path_factory.mktemp("livelock"), broker)
    yield made
    made.process.kill()


@pytest.mark.parametrize("share", [0.9, pytest.param(0.5, marks=LONGER)])
def test_a_livelock_is_noticed_and_released_within_two_seconds(
    stuck: Stuck, share: float, record_property: Callable[[str, object], None]
) -> None:
    """Also where the budget is so small that others have half of the core: it is all that the stages can burn."""
    before = standings(stuck.pid)
    with treadle.attach(stuck.pid, enforce=f"rt:helpers=no,share={share}") as attachment:
        until(lambda: stuck.realtime and stuck.moves(attachment))
        begun, done = len(stuck.times("begun")), len(stuck.times("done"))
        stuck.feed(*[LONG_ROW] * 5)
        until(lambda: len(stuck.times("begun")) > begun)
        until(lambda: not stuck.realtime)
        took = time.monotonic() - stuck.times("begun")[begun]
        record_property("seconds", took)
        assert took < SOON
        (why,) = attachment.status()["released"].values()
        assert why in title(attachment.status())
        until(lambda: len(stuck.times("done")) > done + 2)
        assert not stuck.realtime, "it stays off for a while"
    assert differences(before, stuck.pid) == {}
    assert groups_left() == []
    stuck.settle()


@LONGER
def test_where_work_is_stuck_from_the_first_on_real_time_is_tried_ever_more_seldom(stuck: Stuck) -> None:
    before = standings(stuck.pid)
    stuck.feed(*[LONG_ROW] * 100)
    until(lambda: stuck.times("begun"))
    changes: list[float] = []
    with treadle.attach(stuck.pid, enforce="rt:helpers=no"):
        for on in (True, False) * 3:
            until(lambda on=on: stuck.realtime is on)  # type: ignore[misc]
            changes.append(time.monotonic())
    ons, offs = changes[::2], changes[1::2]
    assert max(off - on for on, off in zip(ons, offs, strict=True)) < SOON
    pauses = [on - off for on, off in zip(ons[1:], offs, strict=False)]
    assert pauses == [pytest.approx(10, abs=2), pytest.approx(20, abs=2)]
    assert differences(before, stuck.pid) == {}
