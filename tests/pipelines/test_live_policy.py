"""Policy and slots are changed while rows flow, over the control socket: nothing is lost, nonsense is refused."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, until
from support import treadle as command
from treadle.errors import ConfigError
from treadle.linux.files import runtime_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(autouse=True)
def _sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for sockets, whose paths must be short, where nobody else's are seen."""
    folder = Path(tempfile.mkdtemp(prefix="tlive"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(runtime_folder, "places", lambda _: [folder / "own"])
    yield
    shutil.rmtree(folder)


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
    "batch": ("100ms", 2.0),
    "patience": (0.5, "1min"),
    "express": (0, 2),
    "paused": (True, False, False),
}
WRONG: dict[str, tuple[Any, ...]] = {
    "policy": ("fastest", 3, None, ["fcfs"], "weighted:nonsense=1"),
    "slots": (0, -1, 1.5, True, "many"),
    "period": (0, "never", -1.0, [1]),
    "batch": (0, None, "x"),
    "patience": ("", float("inf"), {}),
    "express": (-1, "1", 0.5),
    "paused": (1, "yes", None),
    "size": (1,),
}


def ours() -> list[str]:
    """The threads of Treadle; py4j keeps some of its own."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("treadle"))


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
    threads = ours()
    with p.start(spark, folder=tmp_path, slots=1) as run:
        feed, settings = run.feed("fed"), run.steering.settings
        for _ in range(CHANGES):
            feed.append([{"a": a} for a in range(count, count + 5)])
            count += 5
            wanted = {name: chance.choice(RIGHT[name]) for name in chance.sample(sorted(RIGHT), chance.randint(1, 4))}
            wrong = chance.choice(sorted(WRONG)) if chance.random() < 0.4 else None
            if wrong is not None:
                wanted[wrong] = chance.choice(WRONG[wrong])
            before, remembered = settings.read(), run.history
            if wrong is None:
                changed = run.set(**wanted)
                assert {each.setting: each.after for each in changed} == {
                    name: value for name, value in settings.read().items() if value != before[name]
                }
            else:
                with pytest.raises(ConfigError):
                    run.set(**wanted)
                assert (settings.read(), run.history) == (before, remembered)
            time.sleep(0.002)
        mark = len(came)
        feed.append([{"a": count}])
        count += 1
        until(lambda: len(came) > mark, run)
        run.stop(drain=True, timeout=LONG)
    assert came == list(range(count))
    until(lambda: ours() == threads)


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
            assert say("set", "--dry-run", "policy=chain")[1] == "would change policy from fcfs to chain"
            assert say("set")[1] == "policy=fcfs slots=2 period=0.05 patience=2.0 express=1 paused=false batch=0.4"
            assert say("set", "slots=1", "express=0")[0] == 0
            assert say("pause") == (0, "")
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
