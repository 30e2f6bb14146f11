"""The meta-policy: warm-up, judgement, choice, change while running, and going on from a saved state."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from treadle.decide.adaptive import Adaptive, Evidence, Learner, Pick, create
from treadle.decide.policy import Policy
from treadle.errors import ConfigError, EngineError
from treadle.model import Operator, Query, Topology
from treadle.values import Schedule, Snapshot

TOPOLOGY = Topology.of([Query("q", (Operator("a"), Operator("b", ("a",))))])
Totals = Mapping[str, float]


class First(Policy):
    name: ClassVar[str] = "first"
    needs = ("queue",)
    wants = ("cost",)

    def decide(self, snapshot: Snapshot) -> Schedule:
        return Schedule(np.array([1.0, 0.0]), reason="a before b")


class Second(Policy):
    name: ClassVar[str] = "second"
    needs = ("cost", "queue")
    wants = ("age",)

    def __init__(self) -> None:
        self.rounds = 0

    def decide(self, snapshot: Snapshot) -> Schedule:
        self.rounds += 1
        return Schedule(np.array([0.0, 1.0]), spacing="log")

    def state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class Third(First):
    name: ClassVar[str] = "third"


class Best(Learner):
    """The highest Eq. 2 score, so that what a choice stands on can be told from it."""

    name: ClassVar[str] = "best"

    def choose(self, evidence: Evidence, rng: np.random.Generator) -> Pick:
        return Pick(int(np.argmax(evidence.scores)), "the highest score")


def at(time: float, **totals: float) -> Snapshot:
    return Snapshot(TOPOLOGY, time, {}, totals)


def run(policy: Adaptive, world: Callable[[str | None, float], Totals], rounds: int, start: int = 0) -> None:
    """A round a second; the world answers to who is in charge."""
    for time in range(start, start + rounds):
        policy.decide(at(float(time), **world(policy.current, float(time))))


def paper(*candidates: Policy, objectives: str = "min latency", **options: Any) -> Adaptive:
    """As the paper has it, with a delay of one round."""
    plain: dict[str, Any] = {"delay": 1.0, "settle": 0.0, "inherit": False, "decay": 0.25, "learner": Best()}
    return create(candidates, objectives, **{**plain, **options})


def test_warm_up_runs_every_candidate_once_in_order() -> None:
    policy = paper(First(), Second(), Third())
    run(policy, lambda _, t: {"latency": t}, 4)
    assert [choice.chosen for choice in policy.history][:3] == ["first", "second", "third"]
    assert [choice.reason for choice in policy.history][:3] == ["warm-up, run 1 of 1"] * 3
    assert policy.history[3].reason == "best: the highest score"


def test_warm_up_may_have_several_rounds_or_none() -> None:
    twice = paper(First(), Second(), warm_up=2)
    run(twice, lambda _, t: {"latency": t}, 4)
    assert [choice.chosen for choice in twice.history] == ["first", "second", "first", "second"]
    never = paper(First(), Second(), warm_up=0)
    run(never, lambda _, t: {"latency": t}, 1)
    assert never.history[0].reason.startswith("best")


def test_scores_are_the_papers_equations() -> None:
    """One objective to minimise, a round each: 4 under the first, 10 under the second, then 2 under the first again."""
    policy = paper(First(), Second())
    policy.decide(at(0.0, latency=99.0))  # before anybody was in charge
    policy.decide(at(1.0, latency=4.0))
    assert policy.scores == {"first": 1.0, "second": 1.0}  # a history of one value has no spread
    policy.decide(at(2.0, latency=10.0))  # mean 7, range 6
    assert policy.scores == pytest.approx({"first": 1.0, "second": 1 - 3 / 6})
    policy.decide(at(3.0, latency=2.0))  # mean 16/3, range 8; the first's old z was 0
    assert policy.scores == pytest.approx({"first": 1 + (16 / 3 - 2) / 8 * 0.75, "second": 0.5})


def test_a_candidate_is_kept_until_the_delay_has_passed() -> None:
    policy = paper(First(), Second(), delay=0.3)
    times = np.cumsum(np.full(10, 0.1))
    for time in times:
        policy.decide(at(float(time), latency=1.0))
    assert [round(choice.time, 6) for choice in policy.history] == [0.1, 0.4, 0.7, 1.0]


def test_the_level_is_the_mean_over_the_interval_and_nan_is_ignored() -> None:
    policy = paper(First(), Second(), delay=3.0)
    for time, latency in enumerate([9.0, 1.0, float("nan"), 3.0, 5.0, float("inf"), 7.0]):
        policy.decide(at(float(time), latency=latency))
    # first: 1 and 3, mean 2; second: 5 and 7, mean 6; all: mean 4, range 6; first was judged alone
    assert policy.scores == pytest.approx({"first": 1.0, "second": 1 - 2 / 6})


def test_after_a_switch_the_first_part_is_not_counted() -> None:
    policy = paper(First(), Second(), delay=4.0, settle=0.5)
    latencies = [0.0, 100.0, 2.0, 2.0, 2.0, 100.0, 4.0, 4.0, 4.0]
    for time, latency in enumerate(latencies):
        policy.decide(at(float(time), latency=latency))
    # without the 100s: 2 under the first, 4 under the second; mean 3, range 2
    assert policy.scores == pytest.approx({"first": 1.0, "second": 0.5})


def test_intervals_without_any_known_objective_break_nothing() -> None:
    policy = create([First(), Second()], "min latency", "ucb", delay=1.0)
    run(policy, lambda _, t: {"latency": float("nan")}, 20)
    assert policy.scores == {"first": 1.0, "second": 1.0}
    assert {choice.chosen for choice in policy.history} == {"first", "second"}
    json.dumps(policy.state(), allow_nan=False)


def test_the_schedule_is_the_candidates_own_with_the_reason_in_front() -> None:
    policy = paper(First(), Second())
    schedule = policy.decide(at(0.0, latency=1.0))
    assert schedule.reason == "first in charge (warm-up, run 1 of 1); a before b"
    assert schedule.priority[:, 0].tolist() == [1.0, 0.0]
    schedule = policy.decide(at(1.0, latency=1.0))
    assert schedule.reason == "second in charge (warm-up, run 1 of 1)"
    assert schedule.spacing == "log"


@pytest.mark.parametrize("name", ["roulette", "ucb", "thompson", "greedy"])
def test_the_reason_names_the_learner_and_its_grounds(name: str) -> None:
    policy = create([First(), Second()], "min latency", name, delay=1.0)
    run(policy, lambda _, t: {"latency": 1.0 + t % 3}, 12)
    last = policy.history[-1]
    assert last.reason.startswith(f"{name}: ")
    assert any(character.isdigit() for character in last.reason)


def test_each_choice_is_logged_once_with_its_scores(caplog: pytest.LogCaptureFixture) -> None:
    policy = paper(First(), Second(), delay=2.0)
    with caplog.at_level(logging.INFO, logger="treadle.decide.adaptive"):
        run(policy, lambda _, t: {"latency": t}, 5)
    assert [record.getMessage() for record in caplog.records] == [
        "first takes over: warm-up, run 1 of 1",
        "second takes over: warm-up, run 1 of 1",
        "first takes over: best: the highest score",
    ]
    last = vars(caplog.records[-1])
    assert (last["policy"], last["at"], last["chosen"], last["previous"]) == ("adaptive", 4.0, "first", "second")
    assert last["scores"] == policy.scores


def test_the_history_of_choices_is_bounded() -> None:
    policy = paper(First(), Second(), memory=5)
    run(policy, lambda _, t: {"latency": t}, 50)
    assert len(policy.history) == 5
    assert policy.history[-1].time == 49.0


def test_needs_and_wants_are_those_of_all_candidates() -> None:
    policy = paper(First(), Second())
    assert policy.needs == ("queue", "cost")
    assert policy.wants == ("age",)
    policy.remove("second")
    assert list(policy.needs) == ["queue"]
    assert list(policy.wants) == ["cost"]


def test_an_objective_the_engine_lacks_is_named_with_what_there_is() -> None:
    policy = paper(First(), objectives="min lateness")
    with pytest.raises(
        EngineError, match=r"'lateness' is not among the engine's totals.*use one of latency, output_rate"
    ):
        policy.decide(at(0.0, output_rate=1.0, latency=1.0))
    with pytest.raises(EngineError, match="offers no totals"):
        policy.decide(at(0.0))


def test_a_total_that_is_missing_later_is_only_unknown() -> None:
    policy = paper(First(), Second())
    policy.decide(at(0.0, latency=1.0))
    for time in range(1, 6):
        policy.decide(at(float(time)))
    assert policy.scores == {"first": 1.0, "second": 1.0}


def test_changed_objectives_count_for_what_was_already_seen() -> None:
    def world(current: str | None, time: float) -> Totals:
        return {"latency": 1.0, "output_rate": 10.0} if current == "first" else {"latency": 5.0, "output_rate": 50.0}

    policy = create([First(), Second()], "min latency", "ucb", delay=1.0)
    run(policy, world, 10)
    assert policy.current == "first"
    policy.set_objectives("max output_rate 0.9, min latency 0.1")
    run(policy, world, 2, start=10)
    assert policy.current == "second"
    assert policy.scores["second"] > policy.scores["first"]


def test_wrong_new_objectives_leave_the_old_in_force() -> None:
    policy = paper(First())
    with pytest.raises(ConfigError):
        policy.set_objectives("fast please")
    assert [str(objective) for objective in policy.objectives] == ["min latency 1"]


def test_a_candidate_added_while_running_has_its_warm_up_next() -> None:
    policy = paper(First(), Second())
    run(policy, lambda _, t: {"latency": t}, 5)
    assert policy.add(Third()) == "third"
    run(policy, lambda _, t: {"latency": t}, 1, start=5)
    assert policy.current == "third"
    assert policy.history[-1].reason == "warm-up, run 1 of 1"


def test_two_candidates_of_one_name_are_told_apart() -> None:
    assert paper(First(), First(), First()).candidates == ("first", "first#2", "first#3")


def test_a_candidate_removed_while_in_charge_is_replaced_in_the_next_round() -> None:
    policy = paper(First(), Second())
    run(policy, lambda current, _: {"latency": 1.0 if current == "second" else 5.0}, 6)
    assert policy.current == "second"
    policy.remove("second")
    run(policy, lambda _, t: {"latency": t}, 3, start=6)
    assert policy.current == "first"
    assert set(policy.scores) == {"first"}


def test_the_last_candidate_and_an_unknown_one_can_not_be_removed() -> None:
    policy = paper(First())
    with pytest.raises(ConfigError, match="last candidate"):
        policy.remove("first")
    with pytest.raises(ConfigError, match=r"'nobody' is not a candidate.*use one of first"):
        policy.remove("nobody")


@pytest.mark.parametrize("name", ["roulette", "ucb", "thompson", "greedy"])
def test_a_saved_state_goes_on_where_it_was(name: str) -> None:
    def world(current: str | None, time: float) -> Totals:
        return {"latency": (1.0 if current == "first" else 2.0) + 0.3 * np.sin(time), "total_queue": time % 7}

    before = create([First(), Second()], "min latency 1, min total_queue 2", name, rng=1, delay=1.0)
    run(before, world, 30)
    after = create([First(), Second()], "max latency", name, rng=2, delay=1.0)
    after.load(json.loads(json.dumps(before.state(), allow_nan=False)))
    assert after.state() == before.state()
    assert (after.current, after.scores, after.objectives) == (before.current, before.scores, before.objectives)
    assert after.decide(at(1000.0, latency=1.0, total_queue=0.0)).reason.startswith(f"{before.current} in charge")
    run(after, world, 10, start=1001)
    assert all(not choice.reason.startswith("warm-up") for choice in after.history)


def test_a_state_of_other_candidates_is_taken_as_far_as_it_goes() -> None:
    before = paper(First(), Second())
    run(before, lambda current, _: {"latency": 1.0 if current == "second" else 5.0}, 6)
    after = paper(First(), Third())
    after.load(before.state())
    assert after.current is None
    assert after.scores["first"] == before.scores["first"]
    run(after, lambda _, t: {"latency": t}, 1)
    assert after.current == "third"


@pytest.mark.parametrize("broken", [{}, {"memory": 1}, {"objectives": ["min x"], "memory": {"runs": 3}}])
def test_a_broken_state_is_refused_with_the_remedy(broken: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"can't be read.*delete it"):
        paper(First()).load(broken)


def test_a_clock_set_back_begins_the_interval_anew() -> None:
    policy = paper(First(), Second(), delay=5.0)
    run(policy, lambda _, t: {"latency": t}, 3, start=1000)
    run(policy, lambda _, t: {"latency": t}, 6)
    assert [choice.chosen for choice in policy.history] == ["first", "second"]


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 0.0},
        {"delay": float("inf")},
        {"warm_up": -1},
        {"settle": 1.0},
        {"decay": 0.5},
        {"discount": 0.0},
        {"memory": 0},
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"policy 'adaptive': {next(iter(options))} is"):
        create([First()], "min latency", **options)


def test_without_candidates_there_is_nothing_to_choose() -> None:
    with pytest.raises(ConfigError, match="no candidates"):
        create([], "min latency")
