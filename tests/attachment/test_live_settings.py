"""Settings are changed over what runs on this Spark session: an attachment, a gate, a pipeline. All from the outside.

The attachment is one to the JVM of the session, whose queries have sinks in this process: so every row is seen.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import treadle
from applications import differences, groups_left, standings
from fed import Fed
from support import change, held, named, until
from treadle import jvm as java
from treadle.attachment import attach
from treadle.control import control_socket
from treadle.control.settings import Changeable
from treadle.enforce import kernel
from treadle.errors import ConfigError
from treadle.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("own_journals", "own_sockets")
CHANGES = 1000 if "TREADLE_SOAK" in os.environ else 20
RIGHT: dict[str, tuple[Any, ...]] = {
    "policy": ("fcfs", "queue-size", "random", "downstream-first", "none", "user-priority"),
    "period": ("20ms", 0.1, "500ms"),
    "priorities": ({}, {"alerts": 10}, {"bul*": 2.5, "later": 1}, {"*": 3}),
    "queries": (["*"], ["alerts"], ["b*", "later"]),
    "quality": (False,),
    "slots": ("none", 1, "auto"),
    "rules": ([], [{"queries": "bulk", "policy": "fcfs", "priority": 0.5}]),
    "paused": (True, False, False),
}
WRONG: dict[str, tuple[Any, ...]] = {
    "policy": ("fastest", 3, None, ["fcfs"], "weighted:nonsense=1"),
    "period": (0, "never", "1ms", [1]),
    "priorities": (5, None, {"alerts": "high"}, {"alerts": -1}, {"alerts": float("nan")}),
    "queries": ([], "", [1], {}, None),
    "quality": (True, {"alerts": 0.5}, "off", 0.5),
    "quotas": ({"alerts": 0.5},),
    "paused": (1, "yes", None),
    "slots": (0, "many", 1.5),
    "rules": (5, [{"queries": "bulk"}], [{"queries": "bulk", "policy": "fastest"}]),
    "size": (1,),
}


@pytest.fixture
def pid(spark: SparkSession) -> int:
    """The JVM of the session, if its threads may be made more urgent."""
    [fact] = kernel.facts(["nice"])
    if not fact.works:
        pytest.skip(f"nice: {fact.why} ({fact.remedy})")
    jvm.load(spark)
    context: Any = spark.sparkContext
    return int(context._jvm.java.lang.ProcessHandle.current().pid())


def of_treadle(pid: int) -> list[str]:
    """The threads of Treadle in a JVM."""
    return sorted(thread.name for thread in java.dump(pid, frames=0) if "treadle" in thread.name.lower())


def test_any_changes_in_a_row_lose_no_row_and_the_kernel_has_everything_back(
    spark: SparkSession, pid: int, tmp_path: Path
) -> None:
    chance = random.Random(time.time_ns())
    with ExitStack() as ending:
        fed = Fed(spark, tmp_path, ending)
        fed.feed(1)
        until(lambda: fed.whole)
        before, found, theirs = standings(pid), held(), of_treadle(pid)
        with attach(pid, priorities={"alerts": 10}) as attachment, fed.flowing():
            until(lambda: differences(before, pid))
            for _ in range(CHANGES):
                change(attachment, chance, RIGHT, WRONG)
                time.sleep(0.002)
            attachment.set(paused=False, queries=["*"], policy="user-priority", priorities={"alerts": 10}, period=0.05)
            until(lambda: differences(before, pid))
            attachment.set(paused=True)
            assert differences(before, pid) == {}
            rounds = attachment.loop.stats.rounds
            came = len(fed.rows["bulk"])
            until(lambda: len(fed.rows["bulk"]) > came + 50)
            assert (differences(before, pid), attachment.loop.stats.rounds) == ({}, rounds)
            attachment.set(paused=False)
            until(lambda: differences(before, pid))
        until(lambda: fed.whole)
        assert differences(before, pid) == {}
        until(lambda: held() == found)
        until(lambda: of_treadle(pid) == theirs)
    assert groups_left() == []
    assert control_socket.find() == []


# ------------------------------------------------------------ bad input, whatever runs


class Target(NamedTuple):
    """What runs, its control socket, and how many rounds its loop has made."""

    runs: Changeable
    path: Path
    rounds: Callable[[], int]


@pytest.fixture(params=["pipeline", "gate", "attachment"])
def target(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Target]:
    with ExitStack() as ending:
        runs: Any
        if request.param == "pipeline":
            p = treadle.Pipeline(named("bad"))
            p.feed("rows", schema="id long")
            p.sink(name="alerts", inputs="rows")(lambda rows: rows.collect())
            runs = ending.enter_context(p.start(spark, folder=tmp_path))
            name, loop = p.name, None
        elif request.param == "gate":
            runs = ending.enter_context(treadle.gate(spark))
            name, loop = runs.name, runs._loop
        else:
            runs = ending.enter_context(attach(request.getfixturevalue("pid")))
            name, loop = "tests", runs.loop
        decided = [0]
        if loop is None:  # a pipeline keeps its loop to itself: its control thread polls the gate in each round
            runs.steering.step = lambda: decided.__setitem__(0, decided[0] + 1)
        yield Target(
            runs, control_socket.pick(name), (lambda: decided[0]) if loop is None else lambda: loop.stats.rounds
        )


def request(**settings: Any) -> bytes:
    return json.dumps({"command": "set", "arguments": {"settings": settings}}).encode()


MALFORMED = (
    b"",
    b"set policy=fcfs",
    b"\xff\xfe\x00",
    b"[" * 60_000,
    b"[]",
    b'"set"',
    b'{"command": 1}',
    b'{"command": "set"}',
    b'{"command": "sett", "arguments": {"settings": {}}}',
    b'{"command": "set", "arguments": [1]}',
    b'{"command": "set", "arguments": {"settings": 1}}',
    b'{"command": "set", "arguments": {"settings": null}}',
    b'{"command": "set", "arguments": {"settings": {}, "self": 1}}',
    b'{"command": "set", "arguments": {"settings": {"period": NaN}}}',
    b'{"command": "set", "arguments": {"settings": {"period": -Infinity}}}',
    b'{"command": "set", "arguments": {"settings": {"priorities": {"alerts": 1e999}}}}',
    b'{"command": "set", "arguments": {"settings": {"priorities": {"alerts": 1' + b"0" * 400 + b"}}}}",
    request(polcy="fcfs"),
    request(policy=""),
    request(policy="fcsf"),
    request(policy=["fcfs"]),
    request(policy={"name": "fcfs"}),
    request(policy="fcfs", period="soon"),
    request(policy="fcfs", period=0),
    request(period="20ms", paused="yes"),
    request(paused=0),
    request(priorities="alerts=10"),
    request(priorities={"alerts": None}),
    request(priorities={"alerts": [1]}, policy="fcfs"),
    request(priorities={"alerts": True}),
    request(quality={"alerts": 1.5}),
    request(quality={"alerts": {"min_accuracy": 2}}),
    request(quality="some"),
    request(policy="a\nb"),
    request(**{"a\nb\x1b[2J": 1}),
    b"x" * (control_socket.LARGEST_REQUEST + 1),
)


def test_malformed_changes_are_each_answered_by_one_line_with_the_remedy_and_change_nothing(target: Target) -> None:
    assert len(MALFORMED) >= 30
    before = target.runs.settings.read()
    for line in MALFORMED:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60.0)
            client.connect(str(target.path))
            client.sendall(line + b"\n")
            client.shutdown(socket.SHUT_WR)
            with client.makefile("rb") as answers:
                [answer] = answers.readlines()
        error = json.loads(answer)["error"]
        shown = str(ConfigError(error["message"], where=error["where"], remedy=error["remedy"]))
        assert error["kind"] == "ConfigError", shown
        assert error["remedy"], shown
        assert shown.isprintable(), shown
        assert (target.runs.settings.read(), target.runs.history) == (before, []), shown
    assert control_socket.ask(target.path, "set", settings={"period": "70ms"})[0]["after"] == 0.07


def test_clients_that_hang_delay_neither_others_nor_the_loop(target: Target) -> None:
    with ExitStack() as hanging:
        for begin in (b'{"command": "se', b"", b'{"command": "status"}\n' * 2000):
            client = hanging.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(target.path))
            client.setblocking(False)
            client.send(begin)  # and never reads
        rounds = target.rounds()
        for number in range(1, 6):
            [change] = control_socket.ask(target.path, "set", settings={"period": number / 10 + 0.005})
            assert change["after"] == number / 10 + 0.005
        target.runs.set(period="20ms")
        until(lambda: target.rounds() > rounds)
        assert len(control_socket.ask(target.path, "history")) == 6
