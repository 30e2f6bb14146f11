"""The formulas by which learners choose, and what is left of a candidate that was removed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from treadle.decide import adaptive
from treadle.decide.adaptive import Evidence, Greedy, Learner, Pick, Roulette, Thompson, Ucb, learner
from treadle.decide.adaptive.discounted import believe, prefer
from treadle.decide.adaptive.inheritance import adjusted
from treadle.decide.adaptive.memory import Memory
from treadle.decide.adaptive.objectives import parse_objectives
from treadle.decide.adaptive.score import Synopsis
from treadle.decide.policies import Nothing
from treadle.errors import ConfigError
from treadle.model import Floats, Topology
from treadle.values import Snapshot

NOTHING_RUNS = Snapshot(Topology((), ()), 0.0, {}, {"latency": 1.0})
LATENCY = parse_objectives("min latency")


def evidence(rewards: list[float], chosen: list[int], count: int = 3, current: int | None = None) -> Evidence:
    return Evidence(np.ones(count), np.array(chosen, dtype=np.int64), np.array(rewards), current)


SEEN = evidence([1.0, 1.3, 0.9, 1.1, 1.2, 0.8, 1.0], [0, 1, 2, 0, 1, 2, 0])


def test_the_noise_is_the_scatter_within_candidates_and_that_of_all_with_the_weight_of_one_interval() -> None:
    seen, discount = evidence([1.0, 1.4, 0.7, 1.2, 0.9], [0, 1, 0, 1, 2], count=4), 0.8
    weight = discount ** np.arange(4.0, -1.0, -1.0)
    rewards, chosen = seen.rewards, seen.chosen
    means = [float(np.average(rewards[chosen == k], weights=weight[chosen == k])) for k in range(3)]
    everyone = float(np.average(rewards, weights=weight))
    within = sum(w * (reward - means[k]) ** 2 for w, reward, k in zip(weight, rewards, chosen, strict=True))
    overall = float(np.average((rewards - everyone) ** 2, weights=weight))
    each = [float(weight[chosen == k].sum()) for k in range(3)]
    freedom = sum(each) - sum(min(w, 1.0) for w in each)
    belief = believe(seen, discount)
    assert belief.mean.tolist() == pytest.approx([*means, everyone])
    assert belief.weight.tolist() == pytest.approx([*each, 0.0])
    assert belief.noise == pytest.approx(math.sqrt((within + overall) / (freedom + 1.0)))


def test_the_noise_of_a_single_interval_each_is_the_scatter_of_all() -> None:
    belief = believe(evidence([1.0, 1.2], [0, 1]), 1.0)
    assert belief.noise == pytest.approx(0.1)
    assert believe(evidence([1.0, 1.0], [0, 1]), 1.0).noise == 1e-3


def test_a_gain_of_just_the_margin_is_no_reason_to_switch() -> None:
    assert prefer(np.array([1.0, 1.25]), 0, 0.25) == 0
    assert prefer(np.array([1.0, 1.25]), 0, 0.24) == 1


def test_a_policy_draws_by_the_seed_that_it_is_given() -> None:
    class Drawing(Roulette):
        def choose(self, evidence: Evidence, rng: np.random.Generator) -> Pick:
            drawn.append(float(rng.random()))
            return Pick(0, "drawn")

    drawn: list[float] = []
    for options in ({}, {"rng": 0}, {"rng": 5}, {"rng": np.random.default_rng(5)}):
        adaptive.create([Nothing()], "min latency", Drawing(), warm_up=0, **options).decide(NOTHING_RUNS)
    assert drawn == [float(np.random.default_rng(seed).random()) for seed in (0, 0, 5, 5)]


def test_an_unknown_learner_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        learner("oracle")
    assert str(caught.value) == (
        "policy 'adaptive': there is no learner 'oracle' (use one of roulette, ucb, thompson, greedy)"
    )


def test_ucb_takes_the_highest_bound_of_mean_and_width() -> None:
    for width in (0.0, 0.5, 4.0):
        belief = believe(SEEN, 0.9)
        total = float(belief.weight.sum())
        bound = belief.mean + width * belief.noise * math.sqrt(math.log(math.e + total)) / np.sqrt(belief.weight)
        pick = Ucb(0.9, width).choose(SEEN, np.random.default_rng(0))
        best = int(np.argmax(bound))
        assert pick.index == best
        assert pick.reason == f"bound {bound[best]:.3f} over mean reward {belief.mean[best]:.3f}"


def test_ucb_tries_first_what_it_knows_nothing_of_in_order() -> None:
    pick = Ucb().choose(evidence([1.0, 1.0], [1, 1], count=4), np.random.default_rng(0))
    assert (pick.index, pick.reason) == (0, "nothing is known of it yet")
    assert Ucb().choose(evidence([1.0, 1.0], [1, 0]), np.random.default_rng(0)).index == 2


def test_thompson_draws_around_the_mean_by_the_noise_of_a_mean() -> None:
    rare = evidence([1.0, 1.3, 1.2] + [1.1, 1.2] * 30, [0, 1, 2] + [0, 1] * 30)
    for seen, weights in ((SEEN, None), (rare, 0.1)):
        belief = believe(seen, 0.9)
        weight: Floats = np.maximum(belief.weight, weights or 0.0)
        for seed in range(20):
            normal = np.random.default_rng(seed).standard_normal(3)
            draw = belief.mean + belief.noise / np.sqrt(weight) * normal
            pick = Thompson(0.9).choose(seen, np.random.default_rng(seed))
            best = int(np.argmax(draw))
            assert pick.index == best
            assert pick.reason == f"drew {draw[best]:.3f} around mean reward {belief.mean[best]:.3f}"


@pytest.mark.parametrize(
    ("willing", "reluctant"),
    [
        (Ucb(1.0, reluctance=1.0), Ucb(1.0, reluctance=4.0)),
        (Thompson(1.0, reluctance=1.0), Thompson(1.0, reluctance=4.0)),
        (Greedy(0.0, 1.0, reluctance=1.0), Greedy(0.0, 1.0, reluctance=4.0)),
    ],
)
def test_a_switch_must_promise_a_gain_in_deviations_of_the_reward(willing: Learner, reluctant: Learner) -> None:
    """The means are 1.0 and 1.1, and the noise is about 0.05."""
    rewards = [1.0 + 0.05 * (-1) ** (n // 2) + 0.1 * (n % 2) for n in range(4000)]
    seen = evidence(rewards, [n % 2 for n in range(4000)], count=2, current=0)
    assert willing.choose(seen, np.random.default_rng(0)).index == 1
    assert reluctant.choose(seen, np.random.default_rng(0)).index == 0


def test_greedy_explores_as_often_as_it_is_told_to() -> None:
    rng = np.random.default_rng(0)
    always, never = Greedy(epsilon=1.0), Greedy(epsilon=0.0)
    picks = [always.choose(SEEN, rng) for _ in range(60)]
    assert {pick.index for pick in picks} == {0, 1, 2}
    assert {pick.reason for pick in picks} == {"explored, as in 100% of the cases"}
    best = believe(SEEN, 0.97).mean
    assert {never.choose(SEEN, rng) for _ in range(60)} == {never.choose(SEEN, rng)}
    assert never.choose(SEEN, rng).reason == f"mean reward {best[1]:.3f}"


def test_roulette_says_with_which_probability_it_drew() -> None:
    scores = Evidence(np.array([0.0, 0.5, 1.5]), np.zeros(0, dtype=np.int64), np.zeros(0))
    picks = {Roulette().choose(scores, np.random.default_rng(seed)) for seed in range(30)}
    assert {(pick.index, pick.reason) for pick in picks} == {
        (1, "drawn with score 0.500, probability 25%"),
        (2, "drawn with score 1.500, probability 75%"),
    }
    none = Evidence(np.zeros(2), np.zeros(0, dtype=np.int64), np.zeros(0))
    assert Roulette().choose(none, np.random.default_rng(0)).reason == "all scores are 0, drawn evenly"


@pytest.mark.parametrize(
    ("name", "parameter", "value", "remedy"),
    [
        ("greedy", "epsilon", -0.1, "choose it from 0 to 1"),
        ("greedy", "epsilon", 1.1, "choose it from 0 to 1"),
        ("greedy", "reluctance", -1.0, "choose 0 or more"),
        ("ucb", "reluctance", math.inf, "choose 0 or more"),
        ("ucb", "width", -1.0, "choose 0 or more"),
        ("thompson", "reluctance", -1.0, "choose 0 or more"),
        ("greedy", "discount", 0.0, "choose it above 0 and up to 1"),
        ("ucb", "discount", 1.1, "choose it above 0 and up to 1"),
        ("thompson", "discount", 0.0, "choose it above 0 and up to 1"),
    ],
)
def test_a_parameter_out_of_range_is_refused_with_its_learner_and_the_range(
    name: str, parameter: str, value: float, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        learner(name, **{parameter: value})
    assert str(caught.value) == f"learner '{name}': {parameter} is {value:g} ({remedy})"


def test_the_ends_of_the_ranges_are_accepted() -> None:
    for name, parameters in (
        ("greedy", {"epsilon": 0.0, "discount": 1.0, "reluctance": 0.0}),
        ("greedy", {"epsilon": 1.0}),
        ("ucb", {"width": 0.0, "reluctance": 0.0, "discount": 1.0}),
        ("thompson", {"reluctance": 0.0, "discount": 1.0}),
    ):
        assert learner(name, **parameters).choose(SEEN, np.random.default_rng(0)).index in range(3)


def remembering(*runs: tuple[str, float], size: int = 256) -> Memory:
    memory = Memory(decay=0.3, discount=1.0, inherit=False, size=size)
    for candidate, latency in runs:
        memory.take(candidate, {}, {"latency": Synopsis.of(latency)})
    return memory


def test_intervals_of_candidates_that_are_not_asked_for_are_left_out() -> None:
    memory = remembering(("a", 1.0), ("b", 9.0), ("a", 2.0), ("b", 7.0))
    found = memory.evidence(["c", "b"], LATENCY, "a")
    assert (found.chosen.tolist(), found.current) == ([1, 1], None)
    assert found.scores[0] == 1.0


def test_an_interval_counts_if_any_objective_is_known_in_it() -> None:
    memory = remembering(("a", 1.0))
    memory.take("b", {}, {})
    memory.take("a", {}, {"queue": Synopsis.of(7.0)})
    memory.take("b", {}, {"queue": Synopsis.of(9.0), "latency": Synopsis.of(3.0)})
    for objectives in ("min latency, min queue", "min queue, min latency"):
        found = memory.evidence(["a", "b"], parse_objectives(objectives), "a")
        assert found.chosen.tolist() == [0, 0, 1]
    assert memory.evidence(["a", "b"], LATENCY, "a").chosen.tolist() == [0, 1]


def test_what_each_candidate_inherited_is_taken_out_of_its_rewards() -> None:
    memory = Memory(decay=0.0, discount=1.0, inherit=True, size=9)
    starts, levels, who = [1.0, 5.0, 3.0, 9.0, 2.0], [4.0, 9.0, 6.0, 15.0, 3.0], [0, 1, 0, 1, 0]
    for start, seen, candidate in zip(starts, levels, who, strict=True):
        memory.take("ab"[candidate], {"latency": start}, {"latency": Synopsis.of(seen)})
    level = adjusted(np.array(who), np.column_stack([starts, np.full(5, np.nan)]), np.array(levels))
    spread, mean = max(levels) - min(levels), sum(levels) / len(levels)
    rewards = memory.evidence(["a", "b"], LATENCY, "a").rewards
    assert rewards.tolist() == pytest.approx((1.0 - (level - mean) / spread).tolist())


def test_weights_are_made_to_sum_to_one_and_then_stay_as_they_are() -> None:
    assert [objective.weight for objective in parse_objectives("min latency, max output_rate")] == [0.5, 0.5]
    assert [objective.weight for objective in parse_objectives("min latency 3, max cost 1")] == [0.75, 0.25]
    for text in ("min a 0.1, min b 0.2, min c 0.7", "min a 3, min b 7, min c 1e-3"):
        once = parse_objectives(text)
        assert parse_objectives(once) == once


@pytest.mark.parametrize(
    ("objectives", "says"),
    [
        ([], "there is no objective to judge by (write "),
        ("min a, max a", "'a' is given twice (keep one of them)"),
        ("min a 0", "the weight of 'a' is 0 (give it a weight above 0, or leave the objective out)"),
        ("min a much", "'min a much' is not an objective (write "),
        ([{"metric": "", "maximise": True}], "an objective names no metric (write "),
        ([3], "3 is not an objective (write "),
    ],
)
def test_objectives_that_can_not_be_are_refused_as_they_were_written(objectives: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_objectives(objectives)
    assert str(caught.value).startswith(f"objectives: {says}")


def test_the_number_of_intervals_stays_limited_after_loading() -> None:
    memory = remembering(("a", 1.0), ("b", 2.0), ("a", 3.0), size=3)
    other = remembering(size=3)
    other.load(memory.state())
    for changed in (memory, other):
        for latency in (4.0, 5.0, 6.0):
            changed.take("a", {}, {"latency": Synopsis.of(latency)})
        assert [level["latency"] for *_, level in changed.state()["intervals"]] == [4.0, 5.0, 6.0]
