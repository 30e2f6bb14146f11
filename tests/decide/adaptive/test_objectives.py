"""Objectives: how they are written, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.adaptive import Objective, parse_objective, parse_objectives
from treadle.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("min latency 0.7", Objective("latency", maximise=False, weight=0.7)),
        ("Maximize  output_rate 3", Objective("output_rate", maximise=True, weight=3.0)),
        ("max output_rate", Objective("output_rate", maximise=True, weight=1.0)),
        ({"metric": "latency", "maximise": False}, Objective("latency", maximise=False, weight=1.0)),
        ({"metric": "latency", "maximise": False, "weight": 2}, Objective("latency", maximise=False, weight=2.0)),
    ],
)
def test_an_objective_is_understood_in_words_and_as_a_table(written: Any, meant: Objective) -> None:
    assert parse_objective(written) == meant


def test_an_objective_is_written_as_it_is_read() -> None:
    objective = Objective("latency", maximise=False, weight=0.25)
    assert parse_objective(str(objective)) == objective


def test_the_papers_table_3_keeps_its_weights() -> None:
    queue, latency = parse_objectives("min total_queue 0.75, min latency 0.25")
    assert (queue.weight, latency.weight) == (0.75, 0.25)
    assert queue.sign == latency.sign == -1.0


@given(st.lists(st.floats(1e-6, 1e300), min_size=1, max_size=6))
def test_weights_are_normalised_to_one(weights: list[float]) -> None:
    objectives = parse_objectives(Objective(f"m{i}", i % 2 == 0, weight) for i, weight in enumerate(weights))
    assert sum(objective.weight for objective in objectives) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "written",
    [
        "latency",
        "least latency 1",
        "min latency much",
        "min latency 1 2",
        "",
        {"metric": "latency"},
        {"metric": "latency", "maximise": "no"},
        {"metric": "latency", "maximise": True, "wait": 1},
        {"metric": "latency", "maximise": True, "weight": [1]},
        7,
    ],
)
def test_an_unknown_form_is_refused_with_the_form_to_write(written: Any) -> None:
    with pytest.raises(ConfigError, match=r'is not an objective.*write "min latency 0.7"'):
        parse_objectives([written])


@pytest.mark.parametrize("weight", ["0", "-1", "nan", "inf"])
def test_a_weight_must_be_positive_and_finite(weight: str) -> None:
    with pytest.raises(ConfigError, match=r"weight of 'latency'.*above 0"):
        parse_objective(f"min latency {weight}")


def test_an_objective_stands_once_and_there_is_at_least_one() -> None:
    with pytest.raises(ConfigError, match="'latency' is given twice"):
        parse_objectives(["min latency 1", "max latency 1"])
    with pytest.raises(ConfigError, match="no objective"):
        parse_objectives([])
    with pytest.raises(ConfigError, match="names no metric"):
        Objective("", maximise=True)
