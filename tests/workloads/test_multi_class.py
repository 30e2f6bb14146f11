"""Haren's multi-class workload: the load is what is asked for, and the pipeline is what the queries say."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import ConfigError
from treadle.pipelines.nodes.node import Kind
from treadle.workloads import multi_class
from treadle.workloads.burn import calibrate
from treadle.workloads.multi_class import Chain, chains

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNIT = 1e-7


def load_of(chain: Chain, unit: float) -> float:
    """Cores that its rows cost on average."""
    reach = np.cumprod([1.0, *chain.keeps[:-1]])
    return chain.rate * chain.on / (chain.on + chain.off) * float(np.dot(chain.burns, reach)) * unit


@given(
    st.integers(0, 4),
    st.integers(1, 12),
    st.integers(1, 5),
    st.floats(0.1, 2.0),
    st.integers(0, 1000),
)
def test_the_load_is_the_share_of_the_cores_that_was_asked_for_in_equal_parts(
    high: int, low: int, length: int, load: float, seed: int
) -> None:
    found = chains(UNIT, load, high=high, low=low, length=length, cores=4.0, seed=seed)
    assert [chain.urgent for chain in found] == [True] * high + [False] * low
    each = [load_of(chain, UNIT) for chain in found]
    assert sum(each) == pytest.approx(4.0 * load)
    assert max(each) == pytest.approx(min(each))
    for chain in found:
        assert len(chain.burns) == len(chain.keeps) == length
        assert chain.selectivity == pytest.approx(math.prod(chain.keeps))
        assert (chain.off > 0) is chain.urgent


def test_the_same_seed_draws_the_same_queries() -> None:
    assert chains(UNIT, seed=3) == chains(UNIT, seed=3) != chains(UNIT, seed=4)


@pytest.mark.parametrize("wrong", [{"high": 0, "low": 0}, {"length": 0}, {"high": -1}])
def test_a_workload_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least one query and operator"):
        chains(UNIT, **wrong)  # type: ignore[arg-type]


def test_the_pipeline_has_a_feed_the_operators_and_an_urgent_or_other_sink_for_each_query() -> None:
    queries = chains(UNIT, high=1, low=2, length=3)
    p = multi_class.pipeline(queries)
    kinds = [node.kind for node in p.nodes]
    assert [kinds.count(kind) for kind in (Kind.FEED, Kind.OPERATOR, Kind.WRITER)] == [3, 9, 3]
    assert {node.name: node.priority for node in p.sinks} == {"high0": 1.0, "low0": 0.0, "low1": 0.0}
    assert [node.name for node in p.upstream("high0_1")] == ["high0_0"]


def test_operators_keep_their_share_and_rows_stay_uniform(spark: SparkSession) -> None:
    rows = spark.range(4000).selectExpr("id", "id / 4000.0D AS v", "repeat('x', 68) AS payload")
    once = multi_class._operator(3, 0.5, whole=False)(rows)
    twice = multi_class._operator(2, 0.4, whole=True)(once).selectExpr(
        "count(*)", "max(v)", "avg(v)", "max(length(payload))"
    )
    found = twice.first()
    assert found is not None
    assert tuple(found) == (800, pytest.approx(1.0, abs=0.01), pytest.approx(0.5, abs=0.01), 68)


def test_a_burn_costs_in_proportion_to_its_length(spark: SparkSession) -> None:
    unit = calibrate(spark, seconds=0.2)
    assert 0 < unit < 1e-3
