"""Latency is estimated from what batches are known to hold; here against the true latency of every single row."""

from __future__ import annotations

import math
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treadle
from treadle.pipelines.hops.latency import Latency, Part, summarise
from treadle.workloads.generator import INTERVAL, SCHEMA, Flow, Generator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONG = 120.0
AGES = st.floats(0.0, 1e3)
PARTS = st.lists(
    st.builds(lambda n, mean, more: Part(0.0, n, mean + more, mean), st.integers(1, 1000), AGES, AGES), min_size=1
)


def test_nothing_is_unknown() -> None:
    summary = Latency().summary()
    assert summary.rows == 0
    assert all(math.isnan(value) for value in summary[1:])


def test_rows_from_before_the_clock_was_set_back_have_no_age() -> None:
    latency = Latency()
    latency.add(40.0, [(100, 90e6, 95e6)])
    summary = latency.summary()
    assert (summary.rows, summary.mean, summary.max) == (100, 0.0, 0.0)


def test_rows_come_evenly_between_the_youngest_and_the_oldest() -> None:
    latency = Latency()
    latency.add(100.0, [(100, 90e6, 95e6)])  # ages 0 to 10, evenly
    summary = latency.summary()
    assert (summary.rows, summary.mean, summary.max) == (100, 5.0, 10.0)
    assert summary.p50 == pytest.approx(5.0, abs=0.4)
    assert summary.p99 == pytest.approx(9.9, abs=0.4)


@given(PARTS)
def test_percentiles_are_in_order_and_the_mean_is_that_of_all_rows(parts: list[Part]) -> None:
    summary = summarise(parts)
    rows = sum(part.rows for part in parts)
    assert summary.rows == rows
    assert summary.mean == pytest.approx(sum(part.rows * part.mean for part in parts) / rows)
    assert 0.0 <= summary.p50 <= summary.p99 <= summary.max * (1 + 1e-9)


@given(PARTS, st.integers(1, 40))
def test_only_the_latest_are_kept_in_their_order(parts: list[Part], keep: int) -> None:
    latency = Latency(keep=keep)
    for number, part in enumerate(parts):
        latency.add(float(number), [(part.rows, (number - part.oldest) * 1e6, (number - part.mean) * 1e6), (0, 0, 0)])
    kept = latency.parts()
    assert [part.time for part in kept] == [float(number) for number in range(len(parts))][-keep:]
    assert [part.rows for part in kept] == [part.rows for part in parts][-keep:]
    assert latency.parts(since=len(parts) - 1.0) == kept[-1:]


def test_many_parts_are_summed_up_like_few() -> None:
    random = np.random.default_rng(1)
    ages = random.exponential(1.0, 60_000)
    many = Latency()
    many.add(1000.0, [(1, (1000 - age) * 1e6, (1000 - age) * 1e6) for age in ages])
    summary = many.summary()
    assert summary.p50 == pytest.approx(np.quantile(ages, 0.5), rel=0.01)
    assert summary.p99 == pytest.approx(np.quantile(ages, 0.99), rel=0.01)


@pytest.mark.parametrize("layout", ["hops", "fused"])
def test_a_foreign_sources_arrival_column_is_what_counts(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    p, true = treadle.Pipeline(f"arrival-{uuid.uuid4().hex[:8]}"), list[float]()

    @p.source(arrival="at")
    def ticks(spark: SparkSession) -> DataFrame:
        rate = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
        return rate.selectExpr("value", "timestamp - INTERVAL 1 hour AS at")

    @p.sink
    def out(ticks: DataFrame) -> None:
        arrived = [row.at for row in ticks.selectExpr("unix_micros(at) AS at").collect()]
        true.extend(time.time() - np.array(arrived) / 1e6)

    with p.start(spark, folder=tmp_path, layout=layout) as run:
        limit = time.monotonic() + LONG
        while len(true) < 100:
            run.check()
            assert time.monotonic() < limit
            time.sleep(0.02)
        run.stop(drain=True, timeout=LONG)
        hop = run.hops["out"]
        assert hop.latency is not None
        estimate = hop.latency.summary()
    assert estimate.rows == hop.tuples_in == len(true)
    assert estimate.mean == pytest.approx(np.mean(true), abs=1.0)
    assert estimate.mean > 3600


def test_the_estimate_is_true_to_every_rows_own_latency(spark: SparkSession, tmp_path: Path) -> None:
    p, batches = treadle.Pipeline(f"latency-{uuid.uuid4().hex[:8]}"), list[list[int]]()
    p.feed("fed", schema=SCHEMA)

    @p.operator
    def half(fed: DataFrame) -> DataFrame:
        return fed.where("v < 0.5")

    @p.sink
    def out(half: DataFrame) -> None:
        batches.append([row.at for row in half.selectExpr("unix_micros(arrived) AS at").collect()])

    with p.start(spark, folder=tmp_path, slots=1) as run:
        with Generator([Flow(str(run.channels["fed"].folder), 2000.0)]):
            limit = time.monotonic() + LONG
            while sum(map(len, batches)) < 6000:
                run.check()
                assert time.monotonic() < limit
                time.sleep(0.02)
        run.stop(drain=True, timeout=LONG)
        latency = run.hops["out"].latency
        assert latency is not None
        estimate = latency.summary()
    # Rows leave at the end of their batch, after Spark has committed it, which this function can't see.
    ended = sorted({part.time for part in latency.parts()})
    true = [end - at / 1e6 for end, rows in zip(ended, filter(None, batches), strict=True) for at in rows]
    assert estimate.rows == len(true)
    assert estimate.mean == pytest.approx(np.mean(true), rel=0.1, abs=INTERVAL)
    # A few rows of a slow first batch can make a step at one percent, so half a percent of the rows is allowed for.
    low, high = np.quantile(true, (0.985, 0.995))
    assert low * 0.85 - 2 * INTERVAL <= estimate.p99 <= high * 1.15 + 2 * INTERVAL
    assert estimate.max >= max(true) * 0.95
