"""Candidates as text, and the paper's setting by its name."""

from __future__ import annotations

import pytest

from treadle.decide import registry
from treadle.decide.adaptive import PAPER, Adaptive, Roulette, joined, labelled, respelt
from treadle.errors import ConfigError


def adaptive(spec: str) -> Adaptive:
    made = registry.create(spec)
    assert isinstance(made, Adaptive)
    return made


@pytest.mark.parametrize("name", ["amos:paper", "adaptive:paper", " AMOS: paper"])
def test_the_papers_setting_is_one_name(name: str) -> None:
    made = adaptive(name)
    assert made.candidates == ("rr", "fifo", "mtiq", "chain")
    assert {o.metric: o.sign for o in made.objectives} == {"latency": -1, "output_rate": 1, "total_queue": -1}
    assert len({o.weight for o in made.objectives}) == 1
    assert isinstance(made.learner, Roulette)
    assert (made.settle, made.warm_up) == (0.0, 1)


def test_the_list_of_policies_has_it() -> None:
    (found,) = (each for each in registry.describe() if each.name == "adaptive")
    assert PAPER in found.aliases


def test_an_option_given_with_it_wins() -> None:
    made = adaptive("amos:paper,objective=max throughput,delay=5")
    assert [str(each) for each in made.objectives] == ["max output_rate 1"]
    assert (made.delay, isinstance(made.learner, Roulette)) == (5.0, True)


def test_only_adaptive_policies_have_such_a_name() -> None:
    with pytest.raises(ConfigError, match="'paper' is not an option"):
        registry.create("fcfs:paper")
    with pytest.raises(ConfigError, match="'journal' is not an option"):
        registry.create("amos:journal")


def test_labels_read_as_text_are_the_same_candidates() -> None:
    found = labelled("hr+(weighted:qs=0.7,hr=0.3)+chain", registry.create)
    assert list(found) == ["highest-rate", "weighted:qs=0.7,hr=0.3", "chain"]
    again = labelled(joined(found), registry.create, found)
    assert list(again) == list(found)
    assert all(again[label] is found[label] for label in found)


def test_a_candidate_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'highest-rate' is given twice"):
        registry.create("adaptive:candidates=hr+highest-rate")


def test_a_changed_spec_makes_the_changed_policy() -> None:
    spec = respelt("amos:paper,delay=3", objective="min latency 0.7+max throughput 0.3")
    made = adaptive(spec)
    assert [str(each) for each in made.objectives] == ["min latency 0.7", "max output_rate 0.3"]
    assert made.delay == 3.0
