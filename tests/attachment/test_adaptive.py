"""A learner over an application that is only looked at: what can be judged and chosen there, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from treadle.attachment import plan
from treadle.attachment.policies.around import AdaptiveUnderAttach
from treadle.decide import registry
from treadle.decide.adaptive import Adaptive
from treadle.engines.spark.offers import offered
from treadle.errors import ConfigError
from treadle.model import Instance, Operator, Query, Topology
from treadle.values import Snapshot


def make(policy: str) -> plan.Plan:
    return plan.make(policy, None, 0.05, {}, {}, ("*",))


def learner_of(policy: object) -> Adaptive:
    assert isinstance(policy, AdaptiveUnderAttach)
    assert isinstance(policy.inner, Adaptive)
    return policy.inner


def test_without_a_word_there_are_candidates_and_objectives_that_can_be_served() -> None:
    made = learner_of(make("adaptive").policy)
    assert made.candidates == ("downstream-first", "queue-size", "congestion-aware")
    assert [str(objective) for objective in made.objectives] == ["max output_rate 0.5", "min total_queue 0.5"]
    assert learner_of(make("amos:learner=thompson,candidates=random+rr").policy).candidates == ("random", "rr")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("objective=min latency", "objective 'latency' is not measured for running Spark .*output_rate, queue_var"),
    ],
)
def test_what_can_not_be_served_is_one_clear_error(options: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make(f"adaptive:{options}")


def test_a_candidate_for_which_not_enough_is_measured_is_named() -> None:
    learner = registry.create("adaptive:candidates=queue-size+fcfs,objective=min queue_variance")
    assert isinstance(learner, Adaptive)
    with pytest.raises(ConfigError, match=r"candidate 'fcfs' needs head_age, .*use some of queue-size"):
        AdaptiveUnderAttach(learner, offered(beans=True, agent=False))


def test_jolokia_is_loaded_where_objectives_need_kafkas_figures() -> None:
    assert make("adaptive").loads_jolokia(None, dry_run=False)
    blind = make("adaptive:candidates=queue-size+random,objective=min queue_variance")
    assert not blind.loads_jolokia(None, dry_run=False)


def test_what_goes_through_the_whole_application_is_judged_whosever_rows_they_are() -> None:
    judged = make("adaptive:delay=1").policy
    topology = Topology((Query("q", (Operator("a"), Operator("b"))),), (Instance("q", ("a",)), Instance("q", ("b",))))
    columns = {"rate": np.array([np.nan, 5.0]), "external_queue": np.array([1.0, np.nan]), "queue": np.ones(2)}
    snapshot = Snapshot(topology, 0.0, columns, {"output_rate": 50.0, "total_queue": 7.0, "queue_variance": 3.0})
    for second in range(3):
        judged.decide(replace(snapshot, time=float(second)))
    kept = learner_of(judged).state()["memory"]["history"]
    assert {name: values[1] for name, values in kept.items()} == {
        "output_rate": 50.0,
        "total_queue": 7.0,
        "queue_variance": 3.0,
    }
