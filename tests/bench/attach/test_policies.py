"""The figures and claims of `treadle bench attach --part policies`, on made-up measurements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from treadle.bench.attach import policies
from treadle.bench.attach.rig import Outcome
from treadle.workloads.producer import SIXTEEN

FIGURES = dict.fromkeys(policies.GOALS.values(), 100.0)


def measured(**better: float) -> dict[str, list[dict[str, float]]]:
    """Three repetitions in which the goal of each policy is a fifth of what others have of it, or a given figure."""
    found = {}
    for name in policies.VARIANTS:
        own = {policies.GOALS[name]: better.get(name, 20.0)} if name in policies.GOALS else {}
        slower = {"os": 0.02}.get(name, 0.01)  # so that no ratio is the same in all repetitions
        found[name] = [
            {figure: value * (1.0 + slower * at) for figure, value in {**FIGURES, **own}.items()} for at in range(3)
        ]
    return found


def failed(runs: dict[str, list[dict[str, float]]], part: str = "policies") -> list[str]:
    compared: dict[str, Any] = {"near": policies._compared(runs)}
    return [each["claim"] for each in policies.claims(compared, part) if not each["holds"]]


def test_all_claims_hold_where_each_policy_is_best_at_its_goal() -> None:
    assert failed(measured()) == []


def test_a_policy_that_another_beats_at_its_goal_fails() -> None:
    runs = measured()
    for run in runs["chain"]:
        run["mean_ms"] = 1.0
    assert failed(runs) == ["near: mean_ms of highest-rate : the best other"]


def test_a_policy_that_is_worse_than_the_os_fails() -> None:
    assert failed(measured(fcfs=120.0)) == [
        "near: max_ms of fcfs : the best other",
        "near: max_ms, os : fcfs, least of its interval",
    ]


def test_chance_that_is_surely_better_than_the_os_fails() -> None:
    runs = measured()
    for run in runs["random"]:
        run["mean_ms"] = 50.0
    assert failed(runs, "batches") == ["batches, near: mean_ms, os : random, least of its interval"]


def test_each_query_gets_as_much_work_and_what_its_filter_drops_costs_nothing() -> None:
    rates = policies.rates_of(1_000.0, policies.QUERIES)
    put_out = {query.name: rates[query.name] * query.keeps / SIXTEEN for query in policies.QUERIES}
    assert policies._work(put_out, policies.QUERIES) == pytest.approx(1_000.0)
    work = [put_out[query.name] * sum(query.costs) for query in policies.QUERIES]
    assert work == pytest.approx([200.0] * 5)


def test_any_number_of_queries_gets_as_much_work_each() -> None:
    few = policies.QUERIES[:2]
    rates = policies.rates_of(1_000.0, few)
    assert [rates[query.name] * policies._hashes(query) for query in few] == pytest.approx([500.0, 500.0])


def test_a_query_that_asks_for_three_times_as_much_is_given_so_much() -> None:
    rates = policies.rates_of(800.0, policies.QUERIES, policies.UNEVEN)
    work = [rates[query.name] * policies._hashes(query) for query in policies.QUERIES]
    assert work == pytest.approx([300.0, 200.0, 100.0, 100.0, 100.0])


def test_figures_are_of_all_rows_and_of_all_looks_at_the_queues() -> None:
    ages = {query.name: np.array([0.1, 0.3]) for query in policies.QUERIES} | {policies.HIGH: np.array([1.0])}
    outcome = Outcome(ages, dict.fromkeys(ages, 10), dict.fromkeys(ages, 0), {}, 7.0)
    found = policies._figures(outcome, [np.array([1.0, 3.0]), np.array([0.0, 0.0])], 5.0)
    assert found["mean_ms"] == pytest.approx((4 * 400.0 + 1000.0) / 9)
    assert (found["max_ms"], found["high_mean_ms"], found["rows_per_s"]) == (1000.0, 1000.0, 10.0)
    assert (found["queue_cv"], found["queue_variance"], found["rows_inside"]) == (0.5, 0.5, 2.0)
