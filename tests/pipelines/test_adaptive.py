"""A learner drives the gate of a real pipeline: candidates take turns, what they did is judged, and no row is lost."""

from __future__ import annotations

import logging
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import treadle
from support import LONG, until
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        caplog.at_level(logging.INFO, logger="treadle.decide.adaptive"),
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
