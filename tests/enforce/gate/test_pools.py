"""The ladder of FAIR pools: the knob turns hops, and the jobs of a hop really run in its pool."""

from __future__ import annotations

import time
import uuid
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import treadle
from treadle.enforce.gate.pools import LADDER, PoolKnob, allocation_file
from treadle.errors import ConfigError
from treadle.testing import check_knob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONG = 120.0


def make() -> PoolKnob:
    knob = PoolKnob()
    for name in ("a", "b"):
        knob.register(name)
    return knob


def test_it_is_a_good_knob() -> None:
    knob = make()
    check_knob(lambda: knob, ["a", "b"], [0.0, 3.0, 5.0])


@pytest.mark.parametrize("value", [-1.0, 6.0, 1.5, "rung-1"])
def test_a_rung_that_is_not_there_is_refused(value: float | str) -> None:
    with pytest.raises(ConfigError, match="use 0 to 5"):
        make().write("a", value)


def test_a_hop_is_on_the_lowest_rung_until_told_and_again_after_it_has_gone() -> None:
    knob = make()
    knob.write("a", 4.0)
    assert (knob.pool("a"), knob.pool("b")) == ("rung-4", "rung-0")
    knob.withdraw("a")
    knob.register("a")
    assert knob.pool("a") == "rung-0"


def test_the_weights_of_the_ladder_double_from_rung_to_rung() -> None:
    pools = ET.parse(allocation_file()).getroot().findall("pool")
    assert [pool.get("name") for pool in pools] == list(LADDER)
    assert [int(pool.findtext("weight") or 0) for pool in pools] == [2**rung for rung in range(len(LADDER))]


def test_the_jobs_of_a_hop_run_in_the_pool_of_its_rung(spark: SparkSession, tmp_path: Path) -> None:
    """As its tasks see it, and for a hop with a foreign source too."""
    p, seen = treadle.Pipeline(f"pools-{uuid.uuid4().hex[:8]}"), {"urgent": set[str](), "other": set[str]()}
    p.feed("fed", schema="a bigint")
    p.source(name="ticks")(lambda spark: spark.readStream.format("rate").option("rowsPerSecond", 50).load())

    def pools(rows: DataFrame) -> set[str]:
        from pyspark.sql.functions import udf

        def told(_: object) -> str:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            return str(context.getLocalProperty("spark.scheduler.pool"))

        pool = udf(told, "string", useArrow=False)  # told which kind it is, Spark does not warn of guessing
        return {row.pool for row in rows.select(pool(rows.columns[0]).alias("pool")).collect()}

    @p.sink(priority=10)
    def urgent(fed: DataFrame) -> None:
        seen["urgent"] |= pools(fed)

    @p.sink
    def other(ticks: DataFrame) -> None:
        seen["other"] |= pools(ticks)

    with p.start(spark, folder=tmp_path, enforce="pools", policy="user-priority", layout="fused") as run:
        feed, limit, number = run.feed("fed"), time.monotonic() + LONG, 0
        while LADDER[-1] not in seen["urgent"] or not seen["other"]:
            feed.append([{"a": number}])
            run.check()
            assert time.monotonic() < limit, seen
            time.sleep(0.05)
        assert run.status()["enforce"] == "pools"
    assert seen["urgent"] <= set(LADDER)
    assert seen["other"] <= {LADDER[0]}
