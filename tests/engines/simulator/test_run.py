import json

import pytest

from treadle.engines.simulator import scenario
from treadle.engines.simulator.run import simulate
from treadle.errors import ConfigError

SMALL = """
title = "Two filters"
seconds = 2
{top}

[execution]
{execution}

[[query]]
name = "urgent"
priority = 1

[[query.operator]]
name = "a"
cost = 0.001
selectivity = 0.5
source = {{ pattern = "poisson", rate = 200 }}

[[query.operator]]
name = "b"
upstream = ["a"]
cost = 0.002
helper_cost = 0.0005

[[query]]
name = "other"

[[query.operator]]
name = "a"
cost = 0.002
source = {{ rate = 400 }}
{bottom}
"""


def small(top: str = "", execution: str = "", bottom: str = "") -> scenario.Scenario:
    return scenario.parse(SMALL.format(top=top, execution=execution, bottom=bottom), where="small.toml")


@pytest.mark.parametrize(
    "spec", ["hr", "fcfs@nice", "qs@shares", "congestion-aware@rt", "fcfs@slice", "os", "multi-class"]
)
def test_every_knob_carries_a_policy_and_drains_at_the_end(spec: str) -> None:
    outcome = simulate(small(top="drain = true"), spec)
    assert outcome.counters["queued"] == 0
    assert outcome.oldest_waiting == 0
    assert outcome.summary()["throughput"] > 0


def test_a_plan_that_decides_before_every_tuple_drains_too() -> None:
    outcome = simulate(small(top="drain = true", execution="period = 0\nbatch = 1"), "fcfs")
    assert outcome.counters["queued"] == 0


def test_classes_are_summed_up_apart_and_all_is_json() -> None:
    summary = simulate(small(), "multi-class").summary()
    assert list(summary["classes"]) == ["1", "0"]
    assert summary["classes"]["1"]["mean_latency"] < summary["classes"]["0"]["mean_latency"]
    assert json.loads(json.dumps(summary)) == summary


def test_a_schedule_that_costs_time_leaves_less_for_the_work() -> None:
    for execution in ("period = 0.01", "period = 0\nbatch = 1"):
        free = simulate(small(execution=execution), "fcfs")
        dear = simulate(small(execution=execution + "\nschedule_cost = 0.001"), "fcfs")
        assert dear.summary()["mean_latency"] > free.summary()["mean_latency"]


def test_processors_batch_period_policy_and_assignment_change_while_it_runs() -> None:
    change = '[[change]]\nat = 1\nprocessors = 2\nbatch = 3\nperiod = 0.05\npolicy = "hr"\nassign = "load-balance"'
    one, then_two = simulate(small(), "fcfs"), simulate(small(bottom=change), "fcfs")
    assert then_two.counters["queued"] < one.counters["queued"]
    first = then_two.results.time < 1
    assert one.results.time[one.results.time < 1].tolist() == then_two.results.time[first].tolist()


def test_what_still_waits_counts_for_the_maximum_latency() -> None:
    outcome = simulate(small(), "user-priority")
    assert outcome.summary()["max_latency"] >= outcome.oldest_waiting > 0


def test_objectives_and_candidates_change_in_a_scenario_and_concern_adaptive_policies_only() -> None:
    changing = scenario.load("changing-objectives")
    first = changing.change[0].model_copy(update={"at": 8.0, "candidates": "fifo+chain+rr"})
    short = changing.model_copy(update={"change": (first,), "seconds": 14.0, "warm_up": 0.0})
    later = [
        (choice.chosen, choice.reason.startswith("warm-up"))
        for choice in simulate(short, "adaptive:candidates=fifo+chain,delay=1").choices
        if choice.time > 7.99
    ]
    assert [chosen for chosen, warms_up in later if warms_up] == ["rr"]
    assert later[-1][0] == "chain"
    assert simulate(short, "fifo").choices == ()


def test_an_adaptive_policy_says_who_was_in_charge() -> None:
    summary = simulate(small(), "adaptive:candidates=fifo+chain,learner=roulette,delay=0.2").summary()
    assert set(summary["in_charge"]) == {"fifo", "chain"}


def test_an_unknown_knob_is_refused() -> None:
    with pytest.raises(ConfigError, match="put one of rank, nice"):
        simulate(small(), "fifo@weight")


def test_a_policy_that_is_replaced_leaves_nothing_behind() -> None:
    execution = 'mode = "os"\nperiod = 0.1'
    change = '[[change]]\nat = 1\npolicy = "none"'
    outcome = simulate(small(execution=execution, bottom=change), "user-priority@nice")
    first = next(iter(outcome.decisions))
    assert (first.knob, first.before) == ("nice", 0.0)
    untouched = simulate(small(execution=execution), "os")
    late = outcome.results.row[outcome.results.time > 1.5]
    assert set(late.tolist()) == set(untouched.results.row.tolist())


def test_a_wrong_policy_of_a_later_change_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="frist"):
        simulate(small(bottom='[[change]]\nat = 1\npolicy = "frist"'), "fcfs")


def test_shares_take_a_grouping() -> None:
    targets = {
        grouping: {
            decision.target
            for decision in simulate(small(), f"qs@shares/{grouping}").decisions
            if decision.knob == "shares"
        }
        for grouping in ("instance", "query")
    }
    assert len(targets["instance"]) == 3
    assert len(targets["query"]) == 2
    with pytest.raises(ConfigError, match="has no groups"):
        simulate(small(), "qs@nice/query")
    with pytest.raises(ConfigError, match="unknown grouping 'qwery'"):
        simulate(small(), "qs@shares/qwery")


def test_neglected_operators_are_run_only_for_policies_that_need_to_see_them_run() -> None:
    """Haren, section 5: d matters only if f or g uses an execution-intrinsic feature; FCFS does not, HR does."""
    overloaded = "[[query]]\nname = 'more'\noperator = [{ name = 'x', cost = 0.004, source = { rate = 300 } }]"
    for policy, matters in (("fcfs", False), ("hr", True)):
        without, soon = (simulate(small(execution=f"delay = {d}", bottom=overloaded), policy) for d in (0, 0.05))
        assert (without.results.time.tolist() != soon.results.time.tolist()) == matters


def test_a_run_too_short_for_anything_to_happen_is_refused() -> None:
    with pytest.raises(ConfigError, match="can't run for 1e-09 seconds"):
        simulate(small(), "fcfs", seconds=1e-9)
    assert simulate(small(), "fcfs", seconds=0.001).counters["now"] >= 0.001
