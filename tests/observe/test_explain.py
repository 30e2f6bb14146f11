from __future__ import annotations

import pytest

from treadle.errors import EngineError
from treadle.observe import METRICS, Kind, explain
from treadle.observe.metric import Metric


def test_the_plan_is_a_tree_down_to_what_is_taken() -> None:
    text = explain(["global_rate"], ["cpu_time", "tuples_in", "tuples_out"], "flink")
    assert (
        text
        == """\
global_rate            results/s      derived from global_selectivity, global_cost
├─ global_selectivity  results/tuple  derived from selectivity
│  └─ selectivity      tuples/tuple   derived from tuples_in, tuples_out, smoothed
│     ├─ tuples_in     tuples         taken from flink
│     └─ tuples_out    tuples         taken from flink
└─ global_cost         s/tuple        derived from cost, selectivity
   ├─ cost             s/tuple        derived from cpu_time, tuples_in, smoothed
   │  ├─ cpu_time      s              taken from flink
   │  └─ tuples_in     tuples         taken from flink
   └─ selectivity      tuples/tuple   see above
sampled each round: tuples_in, tuples_out, cpu_time
static:              - (and priorities, goals and the graph, which every policy knows)
dynamic:             global_rate
dependent:           global_rate
execution-intrinsic: global_rate"""
    )


def test_another_engine_has_another_tree() -> None:
    text = explain(["global_rate"], ["selectivity", "global_cost"], "liebre")
    assert "sampled each round: selectivity, global_cost" in text.splitlines()
    assert "global_cost" in text.splitlines()[3]
    assert text.splitlines()[3].endswith("taken from liebre")


def test_a_policy_without_needs_samples_nothing() -> None:
    assert explain([], ["queue"], "storm").startswith("sampled each round: nothing\n")


def test_the_metrics_of_a_policy_are_listed_by_the_four_kinds_of_features() -> None:
    metrics = {**METRICS, "colour": Metric("colour", "", "of its walls", Kind.STATIC)}
    names = ["colour", "rate", "queue", "cost"]
    lines = explain(names, names, "storm", metrics=metrics).splitlines()
    assert lines[-4].startswith("static:              colour (")
    assert lines[-3:] == [
        "dynamic:             rate, queue, cost",
        "dependent:           queue",
        "execution-intrinsic: cost",
    ]


def test_a_metric_asked_for_twice_is_shown_once() -> None:
    assert explain(["queue", "queue"], ["queue"], "storm").count("taken from storm") == 1


def test_what_can_not_be_had_is_the_error_of_the_provider() -> None:
    with pytest.raises(EngineError, match="fcfs needs head_age, which engine flink does not offer"):
        explain(["head_age"], ["queue"], "flink", policy="fcfs")
