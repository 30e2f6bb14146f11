"""Each learner's choice from evidence, and that the stronger ones earn more where the best changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from treadle.decide.adaptive import LEARNERS, Evidence, Greedy, Learner, Roulette, Thompson, Ucb, learner
from treadle.decide.adaptive.discounted import believe, prefer
from treadle.errors import ConfigError

EVERY = [pytest.param(name, id=name) for name in LEARNERS]
STRONG = ["ucb", "thompson", "greedy"]


def evidence(*runs: Sequence[float], current: int | None = None) -> Evidence:
    """Rewards of each candidate, which took turns."""
    turns = [(k, run[i]) for i in range(max(map(len, runs))) for k, run in enumerate(runs) if i < len(run)]
    scores = np.array([run[-1] if run else 1.0 for run in runs])
    chosen = np.array([k for k, _ in turns], dtype=np.int64)
    return Evidence(scores, chosen, np.array([reward for _, reward in turns]), current)


def test_roulette_chooses_in_proportion_to_the_scores() -> None:
    rng = np.random.default_rng(7)
    seen = Evidence(np.array([0.4, 1.0, 1.6]), np.zeros(0, dtype=np.int64), np.zeros(0))
    picks = np.bincount([Roulette().choose(seen, rng).index for _ in range(6000)], minlength=3)
    expected = 6000 * seen.scores / seen.scores.sum()
    assert ((picks - expected) ** 2 / expected).sum() < 9.2  # chi-square, 2 degrees of freedom, 1 %


def test_roulette_never_chooses_a_score_of_zero_unless_all_are() -> None:
    rng = np.random.default_rng(7)
    nothing = np.zeros(0, dtype=np.int64)
    some = Evidence(np.array([0.0, 1.0, 0.0]), nothing, np.zeros(0))
    assert {Roulette().choose(some, rng).index for _ in range(200)} == {1}
    none = Evidence(np.zeros(3), nothing, np.zeros(0))
    assert {Roulette().choose(none, rng).index for _ in range(200)} == {0, 1, 2}


@pytest.mark.parametrize("name", EVERY)
def test_the_same_evidence_and_seed_give_the_same_pick(name: str) -> None:
    seen = evidence([1.0, 1.1, 1.2], [1.0, 0.9], [1.05])
    picks = [[learner(name).choose(seen, rng) for _ in range(20)] for rng in map(np.random.default_rng, (3, 3))]
    assert picks[0] == picks[1]


@pytest.mark.parametrize("name", EVERY)
def test_a_pick_is_possible_without_any_evidence_and_says_why(name: str) -> None:
    pick = learner(name).choose(nothing_known(3), np.random.default_rng(0))
    assert pick.index in range(3)
    assert pick.reason


@pytest.mark.parametrize("name", STRONG)
def test_a_clearly_better_candidate_is_chosen_most_of_the_time(name: str) -> None:
    rng = np.random.default_rng(5)
    better, worse = 1.2 + 0.02 * rng.standard_normal(20), 0.9 + 0.02 * rng.standard_normal(20)
    seen = evidence(worse.tolist(), better.tolist(), worse.tolist())
    picks = [learner(name).choose(seen, rng).index for _ in range(200)]
    assert picks.count(1) > 180


@pytest.mark.parametrize("strong", [Ucb(reluctance=0.5), Greedy(reluctance=0.5, epsilon=0.0)])
def test_a_candidate_in_charge_stays_when_another_is_hardly_better(strong: Learner) -> None:
    rng = np.random.default_rng(5)
    runs = [[1.0, 1.1] * 10, [1.005, 1.105] * 10]
    assert strong.choose(evidence(*runs, current=0), rng).index == 0
    assert strong.choose(evidence(*runs, current=1), rng).index == 1
    assert strong.choose(evidence(*runs), rng).index == 1


def test_what_was_long_not_seen_is_tried_again() -> None:
    rng = np.random.default_rng(5)
    noise = 0.05 * rng.standard_normal(3000)
    seen = evidence([1.05, 0.95], (1.02 + noise).tolist(), current=1)
    for strong in (Ucb(), Thompson()):
        assert any(strong.choose(seen, rng).index == 0 for _ in range(20))


def test_older_rewards_weigh_less() -> None:
    belief = believe(evidence([0.0, 1.0]), discount=0.5)
    assert belief.mean[0] == pytest.approx((0.5 * 0.0 + 1.0) / 1.5)
    assert belief.weight[0] == pytest.approx(1.5)


def test_who_was_not_seen_is_believed_to_be_like_the_rest() -> None:
    seen = Evidence(np.ones(2), np.array([0, 0]), np.array([1.2, 1.4]))
    belief = believe(seen, discount=1.0)
    assert belief.mean == pytest.approx([1.3, 1.3])
    assert belief.weight.tolist() == [2.0, 0.0]


def test_the_margin_keeps_the_current_one() -> None:
    values = np.array([1.0, 1.1])
    assert prefer(values, 0, margin=0.2) == 0
    assert prefer(values, 0, margin=0.05) == 1
    assert prefer(values, None, margin=0.2) == 1


def test_unknown_learners_and_parameters_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no learner 'oracle'.*roulette, ucb, thompson, greedy"):
        learner("oracle")
    with pytest.raises(ConfigError, match=r"learner 'ucb'.*'breadth'.*discount, width, reluctance"):
        learner("ucb", breadth=1.0)
    with pytest.raises(ConfigError, match="it has no parameters"):
        learner("roulette", discount=0.9)
    assert learner("ucb", width=2.0) == Ucb(width=2.0)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ucb", {"discount": 0.0}),
        ("thompson", {"discount": 1.5}),
        ("greedy", {"epsilon": 2.0}),
        ("ucb", {"width": -1.0}),
        ("thompson", {"reluctance": float("nan")}),
    ],
)
def test_parameters_out_of_range_are_refused(name: str, parameters: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(parameters))):
        learner(name, **parameters)


def nothing_known(count: int) -> Evidence:
    return Evidence(np.ones(count), np.zeros(0, dtype=np.int64), np.zeros(0))
