"""Objectives and candidates of the policy in charge change: measurements stay, and wrong ones change nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from treadle.control.settings import Setting, Settings
from treadle.decide import learner_settings, registry
from treadle.decide.adaptive import Adaptive
from treadle.decide.policy import Policy
from treadle.errors import ConfigError, EngineError
from treadle.model import Operator, Query, Topology
from treadle.values import Snapshot

TOPOLOGY = Topology.of([Query("q", (Operator("a"), Operator("b", ("a",))))])
SPEC = "adaptive:learner=(greedy:epsilon=0),delay=2,candidates=none+user-priority,objective=min latency"
WORLD = {
    "none": {"latency": 1.0, "total_queue": 9.0},
    "user-priority": {"latency": 5.0, "total_queue": 3.0},
    "random": {"latency": 9.0, "total_queue": 9.0},
}


class Place:
    """A thing that has a policy, as a pipeline has; `chain` can't run there."""

    def __init__(self, spec: str = SPEC) -> None:
        self.policy: Policy = registry.create(spec)
        self.time = 0.0
        self.adopted: list[str | None] = []
        self.settings = Settings(
            {
                "policy": Setting(lambda: self.policy.name, lambda spec: lambda: setattr(self, "policy", spec)),
                **learner_settings.make(self.learner, self.check, self.adopt, "place"),
            },
            threading.RLock(),
            "place",
        )

    def learner(self) -> Adaptive | None:
        return self.policy if isinstance(self.policy, Adaptive) else None

    def check(self, policy: Adaptive) -> None:
        policy.check_objectives(("latency", "total_queue", "accuracy_lost"), "places")
        if "chain" in policy.candidates:
            raise EngineError("chain needs what is not measured")

    def adopt(self, policy: Adaptive) -> None:
        self.adopted.append(policy.spec)

    @property
    def adaptive(self) -> Adaptive:
        assert isinstance(self.policy, Adaptive)
        return self.policy

    def run(self, rounds: int) -> list[str]:
        """A round a second; return what was chosen."""
        mark = len(self.adaptive.history)
        for _ in range(rounds):
            totals = WORLD.get(self.adaptive.current or "", {"latency": 1.0, "total_queue": 1.0})
            self.policy.decide(Snapshot(TOPOLOGY, self.time, {}, totals))
            self.time += 1.0
        return [choice.chosen for choice in list(self.adaptive.history)[mark:]]


@pytest.fixture
def place() -> Place:
    found = Place()
    found.run(10)
    assert found.adaptive.current == "none"
    return found


def test_new_objectives_are_followed_in_the_next_round_from_what_was_measured(place: Place) -> None:
    measured = {name: each["measured"] for name, each in place.adaptive.status()["candidates"].items()}
    (change,) = place.settings.set({"objectives": "min total_queue"})
    assert (change.before, change.after) == ("min latency 1", "min total_queue 1")
    status = place.adaptive.status()
    assert {name: each["measured"] for name, each in status["candidates"].items()} == measured
    assert status["candidates"]["user-priority"]["score"] > status["candidates"]["none"]["score"]
    assert place.run(1) == ["user-priority"]
    assert place.adaptive.status()["why"].endswith("by new objectives")
    assert not [c for c in list(place.adaptive.history)[2:] if c.reason.startswith("warm-up")]


def test_objectives_that_favour_the_same_candidate_do_not_interrupt_its_interval(place: Place) -> None:
    since = place.adaptive.history[-1].time
    place.settings.set({"objectives": "min latency 0.9+min total_queue 0.1"})
    place.run(1)
    assert place.adaptive.history[-1].time in (since, since + 2.0)
    assert place.adaptive.current == "none"


def test_new_objectives_wait_for_the_end_of_the_warm_up() -> None:
    place = Place()
    place.run(1)
    place.settings.set({"objectives": "min total_queue"})
    assert place.run(6) == ["user-priority", "user-priority", "user-priority"]
    assert [c.reason for c in place.adaptive.history][:2] == ["warm-up, run 1 of 1"] * 2


def test_only_a_candidate_that_was_never_measured_gets_a_warm_up(place: Place) -> None:
    assert place.settings.set({"candidates": "none+user-priority+random"})[0].after == "none+user-priority+random"
    assert place.run(3).count("random") == 1
    place.settings.set({"candidates": "none+random"})
    place.settings.set({"candidates": "random+user-priority+none"})
    mark = len(place.adaptive.history)
    place.run(10)
    assert not [c for c in list(place.adaptive.history)[mark:] if c.reason.startswith("warm-up")]


def test_a_candidate_in_charge_that_is_left_out_is_replaced_in_the_next_round(place: Place) -> None:
    place.settings.set({"candidates": "user-priority+random"})
    assert place.adaptive.status()["in_charge"] is None
    assert place.run(1) == ["random"]
    assert "none" not in place.adaptive.status()["candidates"]


def test_both_change_at_once_and_the_text_of_the_policy_follows(place: Place) -> None:
    place.settings.set({"objectives": "max latency 3, min total_queue", "candidates": ["none", "random"]})
    assert place.settings.read() == {
        "policy": "adaptive",
        "objectives": "max latency 0.75+min total_queue 0.25",
        "candidates": "none+random",
    }
    again = registry.create(place.adopted[-1] or "")
    assert isinstance(again, Adaptive)
    assert (again.candidates, again.objectives) == (place.adaptive.candidates, place.adaptive.objectives)
    assert (again.delay, again.learner) == (2.0, place.adaptive.learner)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"objectives": "min luck"}, r"'luck' is not measured for .*use one of"),
        ({"objectives": "min accuracy_lost"}, r"'accuracy_lost' is not measured for place.*use one of latency, total"),
        ({"objectives": "fast please"}, "is not an objective"),
        ({"objectives": ""}, "is not an objective"),
        ({"objectives": 3}, "is not an objective"),
        ({"objectives": [3]}, "is not an objective"),
        ({"objectives": []}, "no objective"),
        ({"objectives": "min latency nan"}, "weight"),
        ({"objectives": "min latency+max latency"}, "given twice"),
        ({"candidates": "fastest"}, "there is no policy 'fastest'"),
        ({"candidates": "none+chain"}, "chain needs what is not measured"),
        ({"candidates": "none+none"}, "given twice"),
        ({"candidates": ""}, "is not the name of a policy"),
        ({"candidates": []}, "candidates can't be"),
        ({"candidates": None}, "candidates can't be"),
        ({"candidates": "(none"}, "parentheses"),
        ({"objectives": "min total_queue", "candidates": "fastest"}, "no policy 'fastest'"),
        ({"objectives": "min total_queue", "policy": "none"}, "can't change at once .change policy first"),
    ],
)
def test_what_can_not_be_is_one_line_with_a_remedy_and_changes_nothing(
    place: Place, wanted: dict[str, Any], problem: str
) -> None:
    before = place.settings.read(), place.adaptive.status()
    with pytest.raises((ConfigError, EngineError), match=problem) as caught:
        place.settings.set(wanted)
    assert "\n" not in str(caught.value)
    assert (place.settings.read(), place.adaptive.status(), place.adopted) == (*before, [])


def test_another_policy_has_neither_objectives_nor_candidates() -> None:
    place = Place("none")
    assert place.settings.read() == {"policy": "none"}
    for setting in ("objectives", "candidates"):
        with pytest.raises(ConfigError, match=rf"the policy in charge has no {setting} \(set policy=adaptive first\)"):
            place.settings.set({setting: "min latency"})


def test_a_dry_run_only_says_what_would_change(place: Place) -> None:
    before = place.adaptive.status()
    (change,) = place.settings.set({"candidates": "random"}, dry_run=True)
    assert (change.before, change.after) == ("none+user-priority", "random")
    assert place.adaptive.status() == before


def test_candidates_that_are_objects_keep_their_state_and_need_no_name_of_the_registry(place: Place) -> None:
    class Mine(Policy):
        name = "mine"

        def decide(self, snapshot: Snapshot) -> Any:
            raise AssertionError("it is not in charge")

    mine = Mine()
    place.adaptive.add(mine)
    place.settings.set({"candidates": "mine+none"})
    assert place.adaptive.policies["mine"] is mine
