"""A learner drives the gate of a real pipeline: candidates take turns, what they did is judged, and no row is lost."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import treadle
from support import LONG, named, until
from support import treadle as command
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from treadle.pipelines.run.run import Run

OBJECTIVES = "min latency_p99 3+max throughput+min backlog_bytes+min queue_variance+min goals_missed"


@pytest.mark.parametrize("learner", ["roulette", "ucb", "thompson"])
def test_a_learner_drives_the_gate_of_a_pipeline(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, learner: str
) -> None:
    p, came = treadle.Pipeline(f"learns-{uuid.uuid4().hex[:8]}"), list[int]()
    p.feed("fed", schema="a bigint")

    @p.sink(latency_goal="1s")
    def out(fed: DataFrame) -> None:
        came.extend(row.a for row in fed.collect())

    p.write("gone", reads="fed", format="noop")
    chosen = f"adaptive:learner={learner},candidates=highest-rate+fcfs,objective={OBJECTIVES},delay=0.2"
    with (
        caplog.at_level(logging.DEBUG, logger="treadle.decide.adaptive"),
        p.start(spark, folder=tmp_path, policy=chosen, slots=1) as run,
    ):
        feed, count, limit = run.feed("fed"), 0, time.monotonic() + LONG
        # It has a say after the warm-up, and by chance two candidates may do equally well at first.
        while not (any(f"{learner}:" in record.message for record in caplog.records) and scores_differ(caplog)):
            assert time.monotonic() < limit
            feed.append([{"a": a} for a in range(count, count + 20)])
            count += 20
            until(lambda: len(came) == count, run)  # noqa: B023 - it is over before the next
        with pytest.raises(ConfigError, match="objective 'luck' is not measured"):
            run.set_policy("adaptive:objective=max luck")
        assert run.policy == chosen
        run.stop(drain=True, timeout=LONG)
    assert {record.chosen for record in caplog.records if hasattr(record, "chosen")} == {"highest-rate", "fcfs"}
    assert sorted(came) == list(range(count))
    assert "fails" not in caplog.text


def scores_differ(caplog: pytest.LogCaptureFixture) -> bool:
    return any(len(set(record.scores.values())) > 1 for record in caplog.records if hasattr(record, "scores"))


@contextmanager
def filled(run: Run) -> Iterator[list[int]]:
    """Fill the feed from another thread; the list has how many rows it has got."""
    feed, done, count = run.feed("fed"), threading.Event(), [0]

    def fill() -> None:
        while not done.is_set():
            feed.append([{"a": a} for a in range(count[0], count[0] + 20)])
            count[0] += 20
            time.sleep(0.005)

    filler = threading.Thread(target=fill)
    filler.start()
    try:
        yield count
    finally:
        done.set()
        filler.join()


def measured(run: Run) -> dict[str, int]:
    return {name: each["measured"] for name, each in run.status()["adaptive"]["candidates"].items()}


def test_objectives_and_candidates_change_while_rows_flow_and_what_was_learned_survives(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each change turns the objective round: what was best by it is then worst, whatever this machine measures."""
    p, came = treadle.Pipeline(named("relearns")), list[int]()
    p.feed("fed", schema="a bigint")

    @p.sink
    def out(fed: DataFrame) -> None:
        came.extend(row.a for row in fed.collect())

    p.write("gone", reads="fed", format="noop")
    learner = "learner=(greedy:epsilon=0,reluctance=0),delay=0.5"
    policy = f"adaptive:{learner},candidates=highest-rate+fcfs,objective=min latency,learned=({tmp_path / 'learned'})"

    def ctl(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = command(monkeypatch, "ctl", words[0], "--pipeline", p.name, *words[1:])
        told = capsys.readouterr()
        return code, " ".join((told.out + told.err).split())

    def turned() -> bool:
        """Turn the objective round; return whether the other candidate took over before the next one was measured."""
        before, mark = run.status()["adaptive"], measured(run)
        wanted = "max latency" if before["objectives"] == ["min latency 1"] else "min latency"
        assert ctl("set", f"objectives={wanted}")[0] == 0
        assert all(count >= mark[name] for name, count in measured(run).items())
        until(lambda: run.status()["adaptive"]["in_charge"] != before["in_charge"] or measured(run) != mark, run)
        return bool(run.status()["adaptive"]["in_charge"] != before["in_charge"])

    caplog.set_level(logging.INFO, "treadle.decide.adaptive")
    with p.start(spark, folder=tmp_path / "run", policy=policy, slots=1, period=0.05) as run:
        with filled(run) as count:
            until(lambda: min(measured(run).values()) > 0, run)
            until(lambda: run.status()["adaptive"]["why"].startswith("greedy"), run)
            until(turned, run)
            assert "by new objectives" in caplog.text
            assert "in charge (greedy: mean reward" in (shown := ctl("status")[1])
            assert "objectives: " in shown
            for wrong in ("objectives=min luck", "objectives=min accuracy_lost", "candidates=fastest"):
                before = run.settings.read()
                code, told = ctl("set", "slots=2", wrong)
                assert (code, told.count("error:"), run.settings.read()) == (2, 1, before)
            assert ctl("set", "candidates=fcfs+queue-size")[0] == 0
            until(lambda: measured(run)["queue-size"] > 0, run)
            assert ctl("set", "candidates=fcfs+highest-rate+queue-size")[0] == 0
            assert min(measured(run).values()) > 0
            total = sum(measured(run).values())
            until(lambda: sum(measured(run).values()) > total, run)
            warmed_up = [record.message.partition(" ")[0] for record in caplog.records if "warm-up" in record.message]
            assert warmed_up == ["highest-rate", "fcfs", "queue-size"]
            run.set(policy="fcfs")
            assert run.status()["adaptive"] is None
            assert ctl("set", "objectives=min latency")[0] == 2
            assert set(json.loads((tmp_path / "learned").read_bytes())["runs"]) == set(warmed_up)
            caplog.clear()
            run.set(policy=policy)
            until(lambda: run.status()["adaptive"]["in_charge"], run)
            assert "warm-up" not in caplog.text
            assert min(measured(run).values()) > 0
        run.stop(drain=True, timeout=LONG)
    assert not [each for each in caplog.records if each.levelno > logging.INFO and "adaptive" in each.name]
    assert sorted(came) == list(range(count[0]))
