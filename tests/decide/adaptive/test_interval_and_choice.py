"""Which rounds count for a candidate, when the next choice is, and what is recorded and said of it."""

from __future__ import annotations

import logging
import math
from typing import Any, ClassVar

import numpy as np
import pytest

from treadle.decide.adaptive import Adaptive, Evidence, Learner, Pick, create
from treadle.decide.policy import Policy
from treadle.errors import ConfigError, EngineError
from treadle.model import Operator, Query, Topology
from treadle.values import Schedule, Snapshot

TOPOLOGY = Topology.of([Query("q", (Operator("a"),))])


class Named(Policy):
    """A candidate of any name."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def decide(self, snapshot: Snapshot) -> Schedule:
        return Schedule(np.array([1.0]))


class Stay(Learner):
    """Keeps the candidate in charge, or takes the first, and remembers what it was asked with."""

    name: ClassVar[str] = "stay"

    def __init__(self) -> None:
        self.asked: list[Evidence] = []

    def choose(self, evidence: Evidence, rng: np.random.Generator) -> Pick:
        self.asked.append(evidence)
        rng.random()
        return Pick(evidence.current or 0, "as it was")


def at(time: float, latency: float = 1.0) -> Snapshot:
    return Snapshot(TOPOLOGY, time, {}, {"latency": latency})


def of(*names: str, **options: Any) -> Adaptive:
    plain: dict[str, Any] = {"delay": 1.0, "settle": 0.0, "inherit": False, "learner": Stay()}
    return create([Named(name) for name in names], "min latency", **{**plain, **options})


def levels(policy: Adaptive) -> list[float]:
    """The mean latency of each finished interval."""
    return [level["latency"] for _, _, level in policy.state()["memory"]["intervals"]]


def test_a_candidate_that_stays_is_judged_by_all_of_its_interval() -> None:
    policy = of("only", delay=4.0, settle=0.5, warm_up=0)
    for time in range(9):
        policy.decide(at(float(time), latency=float(time)))
    assert levels(policy) == [(2 + 3 + 4) / 3, (5 + 6 + 7 + 8) / 4]


def test_after_the_clock_was_set_back_the_first_part_is_not_counted_again() -> None:
    policy = of("only", delay=4.0, settle=0.5)
    for time, latency in [(100.0, 9.0), (101.0, 9.0), (0.0, 9.0), (1.0, 9.0), (2.0, 3.0), (3.0, 5.0), (4.0, 7.0)]:
        policy.decide(at(time, latency))
    assert levels(policy) == [5.0]
    assert len(policy.history) == 2


def test_a_round_at_the_moment_of_the_start_is_part_of_the_interval() -> None:
    policy = of("only", delay=2.0)
    for time, latency in [(0.0, 9.0), (0.0, 4.0), (2.0, 6.0)]:
        policy.decide(at(time, latency))
    assert levels(policy) == [5.0]


def test_after_loading_the_one_in_charge_goes_on_with_a_new_interval_and_its_old_reason() -> None:
    before = of("first", "second", delay=4.0)
    before.decide(at(0.0))
    before.decide(at(3.0, 100.0))
    after = of("first", "second", delay=4.0, settle=0.5)
    after.load(before.state())
    assert after.decide(at(50.0, 100.0)).reason == "first in charge (warm-up, run 1 of 1)"
    assert not after.history
    for time, latency in [(51.0, 100.0), (52.0, 2.0), (53.0, 4.0), (54.0, 6.0)]:
        after.decide(at(time, latency))
    assert levels(after) == [4.0]
    assert (after.history[-1].chosen, after.history[-1].previous) == ("second", "first")


def test_loading_ends_the_interval_in_progress_without_counting_it() -> None:
    policy = of("only", delay=2.0)
    policy.decide(at(0.0))
    policy.decide(at(1.0, 100.0))
    policy.load(policy.state())
    for time in (2.0, 3.0, 4.0):
        policy.decide(at(time, 5.0))
    assert levels(policy) == [5.0]


def test_of_a_state_that_can_not_be_read_nothing_is_learned_of_objectives() -> None:
    policy = of("only")
    state = {**of("other").state(), "objectives": [{"metric": "cost", "maximise": True}], "memory": {}}
    with pytest.raises(ConfigError, match=r"^policy 'adaptive': the saved state can't be read: KeyError\('runs'\) \("):
        policy.load(state)
    assert [str(objective) for objective in policy.objectives] == ["min latency 1"]


def test_objectives_are_checked_against_the_engine_again_after_loading() -> None:
    policy, other = of("only"), create([Named("only")], "min lateness")
    policy.decide(at(0.0))
    policy.load(other.state())
    with pytest.raises(EngineError, match="'lateness' is not among the engine's totals"):
        policy.decide(at(1.0))


def test_new_objectives_are_checked_against_the_engine() -> None:
    policy = of("only")
    policy.decide(at(0.0))
    policy.set_objectives("min lateness")
    with pytest.raises(EngineError, match="'lateness' is not among the engine's totals"):
        policy.decide(at(1.0))


def test_one_that_is_removed_while_not_in_charge_leaves_the_interval_as_it_is() -> None:
    policy = of("first", "second", "third", delay=4.0)
    policy.decide(at(0.0))
    policy.decide(at(2.0, 3.0))
    policy.remove("third")
    policy.decide(at(4.0, 5.0))
    assert levels(policy) == [4.0]
    assert [choice.chosen for choice in policy.history] == ["first", "second"]


def test_the_interval_of_one_that_is_removed_while_in_charge_is_not_counted() -> None:
    policy = of("first", "second", delay=4.0)
    policy.decide(at(0.0))
    policy.decide(at(2.0, 3.0))
    policy.remove("first")
    assert policy.current is None
    policy.decide(at(3.0))
    assert levels(policy) == []
    assert (policy.history[-1].chosen, policy.history[-1].previous) == ("second", None)


def test_one_that_is_removed_is_remembered_and_has_no_second_warm_up_if_it_comes_back() -> None:
    policy = of("first", "second")
    for time in range(3):
        policy.decide(at(float(time)))
    policy.remove("first")
    policy.add(Named("first"))
    assert "warm-up" not in policy.decide(at(3.0)).reason


def test_a_choice_has_its_time_reason_predecessor_and_the_scores_of_that_moment() -> None:
    policy = of("first", "second")
    for time, latency in enumerate([9.0, 4.0, 10.0]):
        policy.decide(at(float(time), latency))
    scores = policy.scores
    assert scores["first"] > scores["second"]
    assert [choice.previous for choice in policy.history] == [None, "first", "second"]
    last = policy.history[-1]
    assert (last.time, last.chosen, last.reason, last.scores) == (2.0, "second", "stay: as it was", scores)
    assert policy.history[0].scores == {"first": 1.0, "second": 1.0}


def test_the_learner_is_asked_with_the_one_in_charge_and_all_that_is_remembered() -> None:
    learner = Stay()
    policy = of("first", "second", learner=learner)
    for time, latency in enumerate([9.0, 4.0, 10.0]):
        policy.decide(at(float(time), latency))
    (asked,) = learner.asked
    assert asked.current == 1
    assert asked.chosen.tolist() == [0, 1]
    assert asked.rewards[0] > 1.0 > asked.rewards[1]


def test_a_learner_draws_from_the_generator_of_the_policy() -> None:
    rng = np.random.default_rng(1)
    of("only", warm_up=0, rng=rng).decide(at(0.0))
    assert rng.random() == np.random.default_rng(1).random(2)[1]


def test_the_record_of_a_choice_says_what_a_log_collector_needs(caplog: pytest.LogCaptureFixture) -> None:
    policy = of("first", warm_up=1)
    with caplog.at_level(logging.INFO, logger="treadle.decide.adaptive.adaptive"):
        policy.decide(at(3.0))
        policy.decide(at(4.0))
    # Only a switch is a line.
    assert [record.getMessage() for record in caplog.records] == ["first takes over: warm-up, run 1 of 1"]
    found = [vars(record) for record in caplog.records]
    keys = ("policy", "at", "chosen", "previous", "scores", "reason")
    assert [[each[key] for key in keys] for each in found] == [
        ["adaptive", 3.0, "first", None, {"first": 1.0}, "warm-up, run 1 of 1"],
    ]


def test_without_options_it_is_as_documented() -> None:
    policy = create([Named("only")], "min latency")
    assert (policy.delay, policy.warm_up, policy.settle) == (2.0, 1, 0.3)
    assert policy.history.maxlen == 256
    for time, latency in [(0.0, 9.0), (0.5, 9.0), (0.6, 2.0), (2.0, 4.0), (4.0, 9.0)]:
        policy.decide(at(time, latency))
    assert levels(policy) == [3.0, 9.0]


def test_only_the_last_intervals_are_remembered() -> None:
    policy = of("only", memory=3)
    for time in range(9):
        policy.decide(at(float(time), float(time)))
    assert levels(policy) == [6.0, 7.0, 8.0]


def test_by_default_what_is_inherited_is_taken_out_of_the_rewards() -> None:
    def rewards(**options: bool) -> list[float]:
        learner = Stay()
        policy = create([Named("first"), Named("second")], "min latency", learner, delay=1.0, settle=0.0, **options)
        for time in range(30):
            queue = float(time % 3)
            policy.decide(Snapshot(TOPOLOGY, float(time), {}, {"latency": (time + 2) % 3, "total_queue": queue}))
        return [float(reward) for reward in learner.asked[-1].rewards]

    assert rewards() == rewards(inherit=True)
    assert np.std(rewards()) < np.std(rewards(inherit=False))


def test_before_its_first_round_nobody_is_in_charge() -> None:
    policy = of("only")
    assert (policy.current, policy.state()["current"], policy.state()["reason"]) == (None, None, "")


def test_the_weight_of_the_old_score_and_the_discount_reach_the_scores() -> None:
    def second_score(**options: Any) -> float:
        policy = of("only", **options)
        for time, latency in enumerate([0.0, 4.0, 10.0, 7.0]):
            policy.decide(at(float(time), latency))
        return policy.scores["only"]

    alone = second_score(decay=0.0)
    assert second_score(decay=0.3) != alone
    assert second_score(decay=0.3) == second_score()
    assert second_score(discount=1.0) == second_score()
    assert second_score(discount=0.5) != second_score()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delay": 0.0}, "delay is 0 (choose some seconds, for instance 2)"),
        ({"delay": math.inf}, "delay is inf (choose some seconds, for instance 2)"),
        ({"warm_up": -1}, "warm_up is -1 (choose 1, or 0 for none)"),
        ({"settle": -0.1}, "settle is -0.1 (choose it from 0 to below 1)"),
        ({"settle": 1.0}, "settle is 1 (choose it from 0 to below 1)"),
        ({"decay": -0.1}, "decay is -0.1 (choose it from 0 to below 0.5)"),
        ({"decay": 0.5}, "decay is 0.5 (choose it from 0 to below 0.5)"),
        ({"discount": 0.0}, "discount is 0 (choose it above 0 and up to 1)"),
        ({"discount": 1.1}, "discount is 1.1 (choose it above 0 and up to 1)"),
        ({"memory": 0}, "memory is 0 (choose some hundred intervals)"),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_value_and_the_range(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of("only", **options)
    assert str(caught.value) == f"policy 'adaptive': {says}"


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 0.001},
        {"warm_up": 0, "settle": 0.0, "decay": 0.0, "discount": 0.01, "memory": 1},
        {"settle": 0.99, "decay": 0.49, "discount": 1.0},
    ],
)
def test_the_ends_of_the_ranges_are_accepted(options: dict[str, float]) -> None:
    policy = of("first", "second", **options)
    for time in range(4):
        policy.decide(at(float(time)))
    assert policy.history


def test_an_objective_that_is_not_measured_is_refused_before_anything_runs() -> None:
    policy = create([Named("only")], "min latency, max output_rate")
    policy.check_objectives({"output_rate", "latency"}, "pipelines")
    with pytest.raises(ConfigError) as caught:
        policy.check_objectives({"output_rate", "cost"}, "pipelines")
    assert str(caught.value) == (
        "policy 'adaptive': objective 'latency' is not measured for pipelines (use one of cost, output_rate)"
    )


def test_errors_say_where_and_what_to_do() -> None:
    policy = of("first", "second")
    cases: list[tuple[Any, str]] = [
        (lambda: policy.remove("x"), "'x' is not a candidate (use one of first, second)"),
        (lambda: of(), "has no candidates (name at least one policy to choose from)"),
        (lambda: of("only").remove("only"), "'only' is the last candidate (add another one first)"),
    ]
    for wrong, says in cases:
        with pytest.raises(ConfigError) as caught:
            wrong()
        assert str(caught.value) == f"policy 'adaptive': {says}"
    with pytest.raises(ConfigError, match=r"\(delete it to learn from the beginning\)$"):
        policy.load({})
    totals = {"output_rate": 1.0, "cost": 2.0}
    with pytest.raises(EngineError) as unknown:
        policy.decide(Snapshot(TOPOLOGY, 0.0, {}, totals))
    problem = "policy 'adaptive': objective 'latency' is not among the engine's totals"
    assert str(unknown.value) == f"{problem} (use one of cost, output_rate)"
    with pytest.raises(EngineError) as none:
        policy.decide(Snapshot(TOPOLOGY, 0.0, {}, {}))
    assert str(none.value) == f"{problem} (this engine offers no totals)"


def test_the_state_has_all_that_was_learned() -> None:
    policy = of("first", "second")
    policy.decide(at(0.0))
    policy.decide(at(1.0, 3.0))
    state = policy.state()
    assert (state["current"], state["reason"]) == ("second", "second in charge (warm-up, run 1 of 1)")
    assert state["objectives"] == [{"metric": "latency", "maximise": False, "weight": 1.0}]
    assert state["candidates"] == {"first": {}, "second": {}}
    assert state["memory"]["runs"] == {"first": 1}


def test_candidates_that_a_saved_state_does_not_know_have_their_warm_up() -> None:
    before = of("gone", "first")
    for time in range(3):
        before.decide(at(float(time)))
    after = of("first", "new")
    after.load(before.state())
    after.decide(at(10.0))
    assert after.decide(at(11.0)).reason == "new in charge (warm-up, run 1 of 1)"
