"""The benchmark of pipelines in its short form: all variants run on one session, and claims follow from figures."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pytest

from treadle.bench.pipelines import policies
from treadle.bench.pipelines.multi_class import VARIANTS, Measured, measure, results
from treadle.bench.pipelines.schedulers import claims
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.hops.latency import Part
from treadle.workloads.multi_class import Chain, chains

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = ("high_p99_ms", "high_mean_ms", "low_p99_ms", "rows_per_s")


@pytest.mark.parametrize("variant", ["treadle", *(["fifo", "fair"] if "TREADLE_SOAK" in os.environ else [])])
def test_a_short_run_gives_all_figures(spark: SparkSession, variant: str) -> None:
    """How good they are is for a long one on a quiet machine; a longer one where nothing came out yet."""
    queries = chains(2e-6, 0.15, high=1, low=2, bursts=(0.5, 0.1))
    told: list[str] = []
    for seconds in (2.5, 10.0, 40.0):
        found = measure(spark, queries, variant, seconds=seconds, warm=1.0, progress=lambda what, _: told.append(what))
        figures = found.figures()
        if all(figures[key] > 0 for key in KEYS):
            break
    assert all(math.isfinite(value) for value in figures.values()), figures
    assert all(figures[key] > 0 for key in KEYS)
    assert figures["high_mean_ms"] <= figures["high_max_ms"]
    assert 0 <= figures["slot_idle_share"] < 1
    assert told[0] == f"{variant}: warming up"
    assert found.seconds >= 2.5


def test_a_row_counts_for_as_many_results_as_it_makes_from_where_it_is() -> None:
    query = Chain("q", False, 1.0, (1, 1), (0.5, 0.2))
    hops = {name: Hop(name, name, name) for name in ("q_0", "q_1", "q")}
    assert {name: results(query, hop, "hops") for name, hop in hops.items()} == {"q_0": 0.1, "q_1": 0.2, "q": 1.0}
    assert results(query, hops["q"], "fused") == 0.1


def test_rows_that_still_wait_count_with_their_age() -> None:
    done, waits = Part(10.0, 100, 0.2, 0.1), Part(10.0, 100, 20.0, 10.0)
    some = Measured("x", (done,), (done,), (), (), 1.0, ((0.0, 1.0, 2.0),), 0.0, 1.0)
    stuck = Measured("x", (done,), (done,), (), (waits,), 1.0, ((0.0, 1.0, 2.0),), 0.0, 1.0)
    assert some.figures()["low_p99_ms"] < 1000 < stuck.figures()["low_p99_ms"]
    assert some.figures()["high_p99_ms"] == stuck.figures()["high_p99_ms"]


def test_claims_are_ratios_against_sparks_own_and_say_whether_they_hold() -> None:
    figures = {
        name: dict.fromkeys((*KEYS, "mean_ms", "max_ms", "queued_rows", "queue_variance"), 10.0) for name in VARIANTS
    }
    figures["fifo"]["high_p99_ms"], figures["fair"]["high_p99_ms"] = 40.0, 12.0
    figures["hr"]["mean_ms"] = 5.0
    found = {each["claim"]: (each["measured"], each["holds"]) for each in claims(figures)}
    assert found["urgent p99 latency, fifo : treadle"] == (4.0, True)
    assert found["urgent p99 latency, fair : treadle"] == (1.2, False)
    assert found["rows/s, treadle : fifo"] == (1.0, True)
    assert found["mean_ms, fifo : hr"] == (2.0, True)
    assert claims({}, []) == []
    assert not any(each["holds"] for each in claims({}))  # what was to be measured and died


def test_hr_and_chain_are_to_be_best_at_their_own_goal_and_better_than_each_other() -> None:
    def runs(**own: tuple[float, float]) -> dict[str, list[dict[str, float]]]:
        return {
            f"{layout}: {name}": [
                dict(zip(("mean_ms", "queued_rows"), own.get(name, (20.0, 20.0)), strict=True)) for _ in range(3)
            ]
            for layout in policies.LAYOUTS
            for name in policies.POLICIES
        }

    def failed(found: dict[str, list[dict[str, float]]]) -> list[str]:
        return [each["claim"] for each in policies.claims(found) if not each["holds"]]

    good = runs(hr=(10.0, 15.0), chain=(15.0, 10.0))
    assert failed(good) == []
    assert policies.figures(good)["hops: chain"]["mean_ms : hr"] == [1.5, 1.5]
    assert failed(runs(hr=(10.0, 9.0), chain=(15.0, 10.0))) == [
        f"{layout}: queued_rows, {claim}"
        for layout in ("fused", "hops")
        for claim in (
            "chain : the best other",
            "chain : the best other, least of its interval",
            "hr : chain, least of its interval",
        )
    ]
    assert len(failed({})) == len(policies.claims({})), "what was to be measured and died"
