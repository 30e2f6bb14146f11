"""The settings of a gate are changed while batches of existing queries run: no row and no batch is lost or repeated."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from fed import Fed
from support import change, held, until
from treadle.control import control_socket
from treadle.errors import ConfigError
from treadle.pipelines.api.query_gate import QueryGate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("own_sockets")
CHANGES = 1000 if "TREADLE_SOAK" in os.environ else 60
RIGHT: dict[str, tuple[Any, ...]] = {
    "policy": ("fcfs", "highest-rate", "chain", "queue-size", "random", "none", "user-priority"),
    "slots": (1, 2, 4, "auto"),
    "period": ("20ms", 0.1, "1s"),
    "patience": (0.5, "1min"),
    "express": (0, 2),
    "paused": (True, False, False),
    "priorities": ({}, {"alerts": 5}, {"bul*": 2.5, "later": 1}, {"*": -3}),
}
WRONG: dict[str, tuple[Any, ...]] = {
    "policy": ("fastest", 3, None, ["fcfs"], "weighted:nonsense=1"),
    "slots": (0, -1, 1.5, True, "many"),
    "period": (0, "never", -1.0, [1]),
    "patience": ("", float("inf"), {}),
    "express": (-1, "1", 0.5),
    "paused": (1, "yes", None),
    "priorities": (5, None, {"alerts": "high"}, {"alerts": float("nan")}, {"alerts": None}, [1]),
    "quality": (False,),
    "batch": (1,),
}


def gated(spark: SparkSession, folder: Path, gate: QueryGate, ending: ExitStack) -> Fed:
    """Queries at this gate, the second with the higher priority."""
    return Fed(spark, folder, ending, lambda batch, number: gate.wrap(batch, priority=number), most_rows=7)


def test_any_changes_in_a_row_lose_no_row_and_no_batch_and_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    chance, found = random.Random(time.time_ns()), held()
    with ExitStack() as ending:
        gate = ending.enter_context(treadle.gate(spark, slots=1, period="20ms"))
        fed = gated(spark, tmp_path, gate, ending)
        fed.feed(1)
        until(lambda: fed.whole)
        for _ in range(CHANGES):
            fed.feed(5)
            change(gate, chance, RIGHT, WRONG)
            time.sleep(0.002)
        until(lambda: fed.whole)
    until(lambda: held() == found)
    assert control_socket.find() == []


def test_priorities_change_who_is_ranked_first_and_a_pause_ranks_nobody(spark: SparkSession, tmp_path: Path) -> None:
    with ExitStack() as ending:
        gate = ending.enter_context(treadle.gate(spark, "user-priority", slots=1, period="20ms"))
        fed = gated(spark, tmp_path, gate, ending)
        fed.feed(10)
        until(lambda: fed.whole)

        def first() -> str | None:
            ranks = {name: hop["rank"] for name, hop in gate.status()["hops"].items()}
            return None if None in ranks.values() else max(ranks, key=ranks.__getitem__)

        until(lambda: first() == "bulk")
        assert gate.settings.read()["priorities"] == {"alerts": 0.0, "bulk": 1.0}
        path = control_socket.pick(gate.name)
        [change] = control_socket.ask(path, "set", settings={"priorities": {"al*": 10, "later": 7}}, dry_run=True)
        assert change["after"] == {"al*": 10.0, "later": 7.0, "alerts": 10.0, "bulk": 1.0}
        assert (
            control_socket.ask(path, "set", settings={"priorities": {"al*": 10, "later": 7}})[0]["after"]
            == change["after"]
        )
        until(lambda: first() == "alerts")
        assert {name: hop["priority"] for name, hop in gate.status()["hops"].items()} == {"alerts": 10.0, "bulk": 1.0}
        with pytest.raises(ConfigError, match="priorities of 'alerts' can't be 'most'"):
            gate.set(priorities={"alerts": "most"})
        assert first() == "alerts"
        gate.set(paused=True)
        assert {hop["rank"] for hop in gate.status()["hops"].values()} == {None}
        fed.feed(10)
        until(lambda: fed.whole)
        assert {hop["rank"] for hop in gate.status()["hops"].values()} == {None}
        gate.set(paused=False, priorities={})
        until(lambda: first() == "bulk")
