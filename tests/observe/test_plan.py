from __future__ import annotations

import pytest

from treadle.errors import EngineError
from treadle.model import Floats
from treadle.observe import METRICS, Inputs, Metric, Way, make_plan, plannable

LEAVES = frozenset({"cpu_time", "tuples_in", "tuples_out"})


def never(inputs: Inputs) -> Floats:
    raise AssertionError("a plan computes nothing")


def test_an_engine_with_intermediate_metrics_gets_a_shorter_plan_than_one_with_leaves_only() -> None:
    """Lachesis Fig. 4: engine A has operator selectivity and path cost, engine B the leaves."""
    plan_a = [str(step) for step in make_plan(["global_rate"], {"selectivity", "global_cost"})]
    plan_b = [str(step) for step in make_plan(["global_rate"], LEAVES)]
    assert plan_a == [
        "selectivity",
        "global_cost",
        "global_selectivity <- selectivity",
        "global_rate <- global_selectivity, global_cost",
    ]
    assert plan_b == [
        "tuples_in",
        "tuples_out",
        "cpu_time",
        "selectivity <- tuples_in, tuples_out",
        "cost <- cpu_time, tuples_in",
        "global_selectivity <- selectivity",
        "global_cost <- cost, selectivity",
        "global_rate <- global_selectivity, global_cost",
    ]


def test_a_metric_comes_after_all_it_needs_and_only_once() -> None:
    plan = make_plan(METRICS, {name for name, metric in METRICS.items() if not metric.ways})
    names = [step.name for step in plan]
    assert sorted(names) == sorted(METRICS)
    assert all(names.index(need) < names.index(step.name) for step in plan for need in step.needs)
    assert [step.level for step in plan] == sorted(step.level for step in plan)


def test_what_is_offered_is_taken_even_where_it_could_be_derived() -> None:
    (step,) = make_plan(["cost"], LEAVES | {"cost"})
    assert step.way is None


def test_the_first_way_that_can_be_planned_is_chosen() -> None:
    assert make_plan(["cost"], LEAVES | {"busy_time"})[-1].needs == ("cpu_time", "tuples_in")
    assert make_plan(["cost"], {"busy_time", "tuples_in"})[-1].needs == ("busy_time", "tuples_in")


def test_a_metric_that_can_not_be_had_names_the_missing_link() -> None:
    with pytest.raises(EngineError) as error:
        make_plan(["global_rate"], {"tuples_in", "tuples_out"}, engine="X", policy="highest-rate")
    text = "highest-rate needs global_rate <- global_cost <- cost <- cpu_time, which engine X does not offer"
    assert error.value.message == text
    assert "cpu_time" in error.value.remedy


def test_the_link_named_is_on_the_way_that_misses_least() -> None:
    with pytest.raises(EngineError, match="can't get cost <- tuples_in, which the engine does not offer"):
        make_plan(["cost"], {"busy_time"})


def test_an_unknown_metric_is_called_unknown() -> None:
    with pytest.raises(EngineError, match="does not know"):
        make_plan(["glamour"], LEAVES)


def test_a_metric_that_only_the_engine_knows_is_taken_from_it() -> None:
    (step,) = make_plan(["glamour"], {"glamour"})
    assert (step.name, step.way) == ("glamour", None)


def test_plannable_answers_without_an_error() -> None:
    assert plannable("global_rate", LEAVES)
    assert plannable("queue", LEAVES)
    assert not plannable("head_age", LEAVES)
    assert not plannable("glamour", LEAVES)


def test_circular_ways_make_no_circular_plan() -> None:
    metrics = {
        "egg": Metric("egg", "1", "", ways=(Way(("hen",), never), Way(("shell",), never))),
        "hen": Metric("hen", "1", "", ways=(Way(("egg",), never),)),
        "shell": Metric("shell", "1", ""),
    }
    assert [step.name for step in make_plan(["egg", "hen"], {"shell"}, metrics=metrics)] == ["shell", "egg", "hen"]
    assert not plannable("egg", set(), metrics)
