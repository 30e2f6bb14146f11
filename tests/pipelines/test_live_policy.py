"""Policy and slots are changed while rows flow, over the control socket: nothing is lost, nonsense is refused."""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, change, held, until
from support import treadle as command
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from treadle.values import Snapshot


pytestmark = pytest.mark.usefixtures("own_sockets")


def treadle_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The command as a user gives it: its exit code, and all it printed."""
    capsys.readouterr()
    code = command(monkeypatch, *words)
    told = capsys.readouterr()
    return code, " ".join((told.out + told.err).split())


CHANGES = 1000 if "TREADLE_SOAK" in os.environ else 60
RIGHT: dict[str, tuple[Any, ...]] = {
    "policy": ("fcfs", "highest-rate", "chain", "queue-size", "random", "none"),
    "slots": (1, 2, 4, "auto"),
    "period": ("20ms", 0.1, "1s"),
    "batch": ("100ms", 2.0, "1000 rows", "3 rows"),
    "patience": (0.5, "1min"),
    "express": (0, 2),
    "paused": (True, False, False),
    "priorities": ({}, {"out": 5}, {"copied": -2.5, "out": 1}, {"*": 3}),
    "quality": (False,),
    "assign": ("none", "random", "round-robin", "load-balance", "adaptive"),
    "assign_period": ("10ms", 1.0),
    "rules": ([], [{"queries": "out", "policy": "fcfs"}], [{"queries": "*", "policy": "rr", "period": "30ms"}]),
}
WRONG: dict[str, tuple[Any, ...]] = {
    "policy": ("fastest", 3, None, ["fcfs"], "weighted:nonsense=1"),
    "slots": (0, -1, 1.5, True, "many"),
    "period": (0, "never", -1.0, [1]),
    "batch": (0, None, "x", "0 rows", "rows"),
    "patience": ("", float("inf"), {}),
    "express": (-1, "1", 0.5),
    "paused": (1, "yes", None),
    "priorities": (5, {"fed": 1}, {"ot": 1}, {"out": "high"}, {"out": float("nan")}, None),
    "quality": (True, {"out": 0.5}, {"out": 2}, 0.5, {}),
    "assign": ("balance", 3, None, lambda snapshot, groups: [groups]),
    "assign_period": (0, "never"),
    "rules": ("out", {}, [1], [{"queries": "out"}], [{"queries": "out", "policy": "fastest"}], None),
    "size": (1,),
    "objectives": ("min luck", 3, None),
    "candidates": ("fastest", "", []),
}


def test_any_changes_in_a_row_lose_no_row_and_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    p, came = treadle.Pipeline(f"live-{uuid.uuid4().hex[:8]}"), list[int]()
    p.feed("fed", schema="a bigint")

    @p.operator
    def copied(fed: DataFrame) -> DataFrame:
        return fed

    @p.sink
    def out(copied: DataFrame) -> None:
        came.extend(row.a for row in copied.collect())

    chance, count = random.Random(time.time_ns()), 0
    found = held()
    with p.start(spark, folder=tmp_path, slots=1) as run:
        feed = run.feed("fed")
        for _ in range(CHANGES):
            feed.append([{"a": a} for a in range(count, count + 5)])
            count += 5
            change(run, chance, RIGHT, WRONG)
            time.sleep(0.002)
        mark = len(came)
        feed.append([{"a": count}])
        count += 1
        until(lambda: len(came) > mark, run)
        run.stop(drain=True, timeout=LONG)
    assert came == list(range(count))
    until(lambda: held() == found)


def test_changes_in_full_flow_lose_no_row_and_wrong_ones_change_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    p, came = treadle.Pipeline(f"live-{uuid.uuid4().hex[:8]}"), {"one": list[int](), "two": list[int]()}
    p.feed("fed", schema="a bigint")

    @p.operator
    def copied(fed: DataFrame) -> DataFrame:
        return fed

    @p.sink(priority=1)
    def one(copied: DataFrame) -> None:
        came["one"] += [row.a for row in copied.collect()]

    @p.sink
    def two(copied: DataFrame) -> None:
        came["two"] += [row.a for row in copied.collect()]

    def say(*words: str) -> tuple[int, str]:
        return treadle_says(monkeypatch, capsys, "ctl", *words)

    with p.start(spark, folder=tmp_path, policy="fcfs", slots=1) as run:
        feed, done, count = run.feed("fed"), threading.Event(), 0

        def fill() -> None:
            nonlocal count
            while not done.is_set():
                feed.append([{"a": a} for a in range(count, count + 20)])
                count += 20
                time.sleep(0.005)

        def flows_on() -> None:
            """Rows come out that came in after now."""
            mark = count
            until(lambda: all(rows and rows[-1] > mark for rows in came.values()))

        filler = threading.Thread(target=fill)
        filler.start()
        try:
            flows_on()
            for policy in ("highest-rate", "chain", "multi-class", "none"):
                assert say("policy", policy) == (0, policy)
                assert run.status()["policy"] == policy
                flows_on()
            for wrong in ("fastest", "weighted:nonsense=1"):
                code, told = say("policy", wrong)
                assert code == 2
                assert "error:" in told
                assert say("policy") == (0, "none")
            with pytest.raises(ConfigError, match="there is no policy 'fastest'"):
                run.set_policy("fastest")
            flows_on()
            assert say("slots", "3") == (0, "3")
            flows_on()
            code, told = say("slots", "0")
            assert (code, "slots" in told) == (2, True)
            assert say("slots") == (0, "3")
            assert say("slots", "1") == (0, "1")
            flows_on()
            code, told = say("set", "policy=fcfs", "slots=2", "period=50ms", "batch=400ms", "patience=2", "express=1")
            assert (code, "changed batch from 0.5 to 0.4" in told) == (0, True)
            assert run.gate.slots == 2
            flows_on()
            for wrong in (
                "slots=0",
                "period=never",
                "batch=-1s",
                "express=1.5",
                "paused=maybe",
                "size=3",
                "slots",
                "=1",
            ):
                code, told = say("set", "policy=chain", wrong)
                assert (code, "error:" in told) == (2, True)
            by_rule = [{"queries": "tw*", "policy": "fcfs", "priority": 5, "period": 0.02}]
            assert say("set", f"rules={json.dumps(by_rule)}")[0] == 0
            assert (run.settings.read()["rules"], run.settings.read()["period"]) == (by_rule, 0.05)
            # The operator is of the most urgent set among the sinks that it reaches.
            assert {name: hop["rule"] for name, hop in run.status()["hops"].items()} == {
                "copied": "tw*",
                "one": None,
                "two": "tw*",
            }
            flows_on()
            until(lambda: (ranks := run.gate.ranks)[run.hops["two"].id] > ranks[run.hops["one"].id], run)
            assert say("set", "rules=[]")[0] == 0
            assert say("set", "--dry-run", "policy=chain")[1] == "would change policy from fcfs to chain"
            assert (
                say("set")[1]
                == "policy=fcfs rules=[] slots=2 period=0.05 patience=2.0 express=1 paused=false assign=none "
                'assign_period=1.0 batch=0.4 priorities={"one": 1.0, "two": 0.0} quality=false'
            )
            assert say("policy", "user-priority") == (0, "user-priority")

            def ranks(higher: str, lower: str) -> bool:
                hops = run.status()["hops"]
                one, other = hops[higher]["rank"], hops[lower]["rank"]
                return one is not None and other is not None and one > other

            until(lambda: ranks("one", "two"))
            assert say("priority", "two=5", "copied=7") == (0, '{"one": 1.0, "two": 5.0, "copied": 7.0}')
            until(lambda: ranks("two", "one") and ranks("copied", "two"))
            assert [run.hops[name].urgent for name in ("one", "two", "copied")] == [False, True, True]
            code, told = say("priority", "tow=1")
            assert (code, "priorities: there is no 'tow' (did you mean two?)" in told) == (2, True)
            assert ranks("two", "one")
            assert say("priority", "{}") == (0, '{"one": 1.0, "two": 0.0}')
            until(lambda: ranks("one", "two") and not ranks("copied", "one"))
            flows_on()
            assert say("set", "slots=1", "express=0")[0] == 0
            assert say("pause") == (0, "")
            assert {hop["rank"] for hop in run.status()["hops"].values()} == {None}
            until(lambda: len(run.gate.stats.holding) > 1)  # more than there are slots: nothing is held back
            flows_on()
            assert run.set(paused=False)[0].setting == "paused"
            flows_on()
            until(lambda: len(run.gate.stats.holding) <= 1)
            told = say("history")[1]
            assert "paused from True to False (this process)" in told
            assert f"policy from none to fcfs (process {os.getpid()} of " in told
        finally:
            done.set()
            filler.join()
        run.check()
        run.stop(drain=True, timeout=LONG)
    assert came == {"one": list(range(count)), "two": list(range(count))}


def test_hops_are_assigned_to_slots_in_full_flow_and_a_wrong_assignment_changes_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    p, came = treadle.Pipeline(f"live-{uuid.uuid4().hex[:8]}"), {"one": list[int](), "two": list[int]()}
    p.feed("fed", schema="a bigint")

    @p.operator
    def copied(fed: DataFrame) -> DataFrame:
        return fed

    @p.sink
    def one(copied: DataFrame) -> None:
        came["one"] += [row.a for row in copied.collect()]

    @p.sink
    def two(copied: DataFrame) -> None:
        came["two"] += [row.a for row in copied.collect()]

    def apart(snapshot: Snapshot, groups: int) -> list[int]:
        """The operator has the first slot, all sinks the last one."""
        if fails:
            raise ValueError("a bad day")
        return [0 if "copied" in name else groups - 1 for name in snapshot.topology.ids]

    def groups() -> list[int | None]:
        return [run.status()["hops"][name]["group"] for name in ("copied", "one", "two")]

    fails: list[bool] = []
    done, steady, count, together = threading.Event(), threading.Event(), 0, False
    with p.start(spark, folder=tmp_path, policy="fcfs", slots=2, express=0, assign=apart, assign_period="20ms") as run:
        feed = run.feed("fed")

        def fill() -> None:
            nonlocal count, together
            while not done.is_set():
                feed.append([{"a": a} for a in range(count, count + 20)])
                count += 20
                together |= steady.is_set() and {run.hops["one"].id, run.hops["two"].id} <= set(run.gate.stats.holding)
                time.sleep(0.005)

        def flows_on() -> None:
            mark = count
            until(lambda: all(rows and rows[-1] > mark for rows in came.values()), run)

        filler = threading.Thread(target=fill)
        filler.start()
        try:
            until(lambda: groups() == [0, 1, 1], run)
            flows_on()
            steady.set()
            flows_on()
            steady.clear()
            assert [group["hops"] for group in run.status()["groups"]] == [1, 2]
            run.set(slots=3)
            until(lambda: groups() == [0, 2, 2], run)
            run.set(slots=1)
            assert groups()[1:] == [None, None]  # at once: their slot is gone
            until(lambda: groups() == [0, 0, 0], run)
            flows_on()
            before = run.settings.read()
            for wrong in ("balance", 3, lambda snapshot, groups: [groups] * 3, lambda snapshot, groups: 1 // 0):
                with pytest.raises(ConfigError, match="assign"):
                    run.set(assign=wrong, policy="chain")
            assert run.settings.read() == before
            with caplog.at_level(logging.WARNING, "treadle.decide"):
                fails.append(True)
                until(lambda: run.status()["assign_refused"], run)
                flows_on()
            assert groups() == [0, 0, 0]
            refused = [record.getMessage() for record in caplog.records if record.name == "treadle.decide"]
            assert refused == ["assign 'apart' raised ValueError: a bad day; the assignment before stays in force"]
            assert [str(each) for each in run.set(assign="none", slots=2)] == [
                "assign from apart to none",
                "slots from 1 to 2",
            ]
            until(lambda: groups() == [None] * 3, run)
            assert "groups" not in run.status()
            flows_on()
            for name in ("random", "load-balance", "adaptive"):
                run.set(assign=name)
                until(lambda: None not in groups(), run)
                flows_on()
        finally:
            done.set()
            filler.join()
        run.stop(drain=True, timeout=LONG)
    assert came == {"one": list(range(count)), "two": list(range(count))}
    assert not together  # one slot serves both
