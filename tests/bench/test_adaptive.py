"""The benchmark of learners in its short form: costs and regret follow from figures, and a short run gives them all."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pytest

from treadle.bench.adaptive import CANDIDATES, OBJECTIVES, OTHERS, claims, judged, measure, variants, weighted
from treadle.config import Config
from treadle.decide import registry
from treadle.decide.adaptive import Adaptive
from treadle.enforce.gate.slots import usable_cores
from treadle.workloads import changing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_variant_is_a_policy_and_learners_have_all_candidates() -> None:
    made = {name: registry.create(text) for name, text in variants(CANDIDATES, OBJECTIVES).items()}
    assert [name for name, policy in made.items() if not isinstance(policy, Adaptive)] == list(CANDIDATES)
    learners = {"adaptive": "ucb", "roulette": "roulette", "thompson": "thompson", "ucb, for this load": "ucb"}
    for variant, name in learners.items():
        learner = made[variant]
        assert isinstance(learner, Adaptive)
        assert learner.learner.name == name
        assert learner.candidates == CANDIDATES


def test_the_variant_that_claims_are_about_has_the_settings_that_are_shipped() -> None:
    text = variants(CANDIDATES, OBJECTIVES)["adaptive"]
    judged_by = registry.create(text)
    shipped = registry.create(Config().policy("adaptive"))
    assert isinstance(judged_by, Adaptive)
    assert isinstance(shipped, Adaptive)
    assert judged_by.learner == shipped.learner
    assert {key: value for key, value in vars(judged_by).items() if isinstance(value, float)} == {
        key: value for key, value in vars(shipped).items() if isinstance(value, float)
    }


def test_costs_are_parts_of_the_candidates_mean_and_more_throughput_costs_less() -> None:
    found = {
        "a": [{"latency_p99": 1.0, "output_rate": 10.0}],
        "b": [{"latency_p99": 3.0, "output_rate": 30.0}],
    }
    costs = weighted(found, ("a", "b"), "min latency_p99 0.5+max throughput 0.5")
    assert costs["a"].tolist() == pytest.approx([0.5 * 0.5 + 0.5 * 2.0])
    assert costs["b"].tolist() == pytest.approx([0.5 * 1.5 + 0.5 * 20 / 30])


def test_regret_is_against_the_best_candidate_of_each_phase() -> None:
    figures = {
        "a": [1.0, 3.0],
        "b": [3.0, 1.0],
        "roulette": [2.0, 2.0],
        "adaptive": [1.5, 1.1],
        "thompson": [1.0, 1.0],
    }
    found = judged(
        {name: [{"latency": value} for value in values] for name, values in figures.items()},
        ("one", "other"),
        ("a", "b"),
        "min latency",
    )
    assert found["oracle"] == {"cost": 0.5, "by_phase": ["a", "b"]}
    assert [found[name]["regret"] for name in figures] == [1.0, 1.0, 1.0, 0.3, 0.0]
    within, better = claims(found, "gate")
    assert (round(within["measured"], 2), within["holds"]) == (1.54, True)
    assert (round(better["measured"], 2), better["holds"]) == (1.54, True)


def test_claims_fail_where_the_default_is_worse_however_good_another_learner_is() -> None:
    figures = {"a": 1.0, "roulette": 1.1, "adaptive": 1.2, "thompson": 0.5}
    found = judged({name: [{"latency": value}] for name, value in figures.items()}, ("one",), ("a",), "min latency")
    assert [each["holds"] for each in claims(found, "gate")] == [False, False]
    assert [each["measured"] for each in claims({}, "gate")] == [None, None]


def test_a_machine_that_others_used_is_said_to_be_so() -> None:
    found = {name: [{"latency": 1.0, OTHERS: 0.0}] for name in ("a", "roulette", "adaptive", "thompson")}
    assert claims(judged(found, ("one",), ("a",), "min latency"), "gate")[0]["holds"]
    found["adaptive"][0][OTHERS] = 1.0 * usable_cores()
    alone, *_ = claims(judged(found, ("one",), ("a",), "min latency"), "gate")
    assert (alone["measured"], alone["holds"]) == (0.0, False)


def test_the_load_changes_its_character_but_not_its_height() -> None:
    for phase in changing.PHASES:
        queries = changing.queries(1e-6, phase, 0.7, cores=2)
        work = sum(query.rate * query.burns[0] * 1e-6 * query.on / (query.on + query.off) for query in queries)
        assert work == pytest.approx(0.7 * 2)
    rush, toil = (
        {query.name: query.rate for query in changing.queries(1e-6, phase, cores=2)} for phase in changing.PHASES
    )
    assert sum(rush[name] for name in rush if name.startswith("dear")) < 0.01 * sum(rush.values())
    assert sum(toil[name] for name in toil if name.startswith("dear")) > 0.05 * sum(toil.values())


@pytest.mark.skipif("TREADLE_SOAK" not in os.environ, reason="a whole benchmark in small: make soak")
def test_a_short_run_gives_all_figures(spark: SparkSession) -> None:
    """How good they are is for a long one on a quiet machine; a longer one where nothing came out yet."""
    policy = f"{variants(CANDIDATES, OBJECTIVES)['adaptive']},delay=0.3"
    for minute in (3.0, 12.0, 48.0):
        found = measure(spark, 4e-5, policy, changing.PHASES, minute=minute, warm=0.0)
        if all(figures["latency_p99"] > 0 for figures in found):
            break
    assert len(found) == len(changing.PHASES)
    assert all(math.isfinite(value) for figures in found for value in figures.values())
