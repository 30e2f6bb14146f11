"""The benchmark of assignments: its load is as it says, and its claim is about load-balance against random."""

from __future__ import annotations

import math

import pytest

from treadle.bench.pipelines import assign


def runs(**idle: list[float]) -> dict[str, list[dict[str, float]]]:
    return {name.replace("_", "-"): [{assign.IDLE: share} for share in shares] for name, shares in idle.items()}


def test_all_queries_read_as_many_rows_and_the_last_costs_twenty_times_the_first() -> None:
    unit = 1e-8
    queries = assign.chains(unit, load=0.5, cores=4.0)
    assert len({query.rate for query in queries}) == 1
    assert queries[-1].burns[0] / queries[0].burns[0] == pytest.approx(20.0, rel=0.01)
    assert sum(query.rate * query.burns[0] * unit for query in queries) == pytest.approx(2.0, rel=0.01)


def test_the_claim_compares_idle_slots_within_each_repetition() -> None:
    found = runs(random=[0.2, 0.4, 0.3], load_balance=[0.1, 0.2, 0.15], none=[0.0, 0.01, 0.01])
    assert [(claim["measured"], claim["holds"]) for claim in assign.claims(found)] == [(0.5, True), (0.5, True)]
    shown = assign.figures(found)
    assert shown["assign: load-balance"] == {assign.IDLE: 0.15, f"{assign.IDLE} : random": [0.5, 0.5]}


def test_without_figures_or_with_one_repetition_only_the_claim_does_not_hold() -> None:
    assert not any(claim["holds"] for claim in assign.claims(runs(random=[0.2], load_balance=[])))
    once = assign.claims(runs(random=[0.2], load_balance=[0.1]))
    assert [claim["holds"] for claim in once] == [True, False]
    assert math.isclose(once[0]["measured"], 0.5)
