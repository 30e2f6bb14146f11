"""Claims about rules for two sets hold only where each set reaches its own goal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from treadle.bench import two_sets
from treadle.bench.attach import rules as under_attach
from treadle.bench.pipelines import rules as at_the_gate

FIGURES = {
    "attach": (under_attach, "alerts_max_ms", "reports_mean_ms"),
    "pipelines": (at_the_gate, "high_max_ms", "low_mean_ms"),
}


def measured(figures: Sequence[str], own: tuple[float, float] = (100.0, 50.0)) -> dict[str, list[dict[str, float]]]:
    """Three repetitions, in which each policy is good at its goal only; `own` are the figures of rules."""
    found = {}
    alerts, reports = figures
    for name in (two_sets.FCFS, two_sets.HR, two_sets.BOTH_FCFS, two_sets.BOTH_HR):
        is_fcfs = name.startswith("fcfs")
        found[name] = [{alerts: 100.0 if is_fcfs else 500.0, reports: 300.0 if is_fcfs else 50.0}] * 3
    return {**found, two_sets.RULES: [dict(zip((alerts, reports), own, strict=True))] * 3}


@pytest.mark.parametrize("part", FIGURES)
def test_all_claims_hold_where_both_sets_reach_their_goals(part: str) -> None:
    module, *figures = FIGURES[part]
    made = module.claims(measured(figures))
    assert len(made) == 6
    assert all(claim["holds"] for claim in made)


@pytest.mark.parametrize("part", FIGURES)
@pytest.mark.parametrize("own", [(800.0, 50.0), (100.0, 400.0)])
def test_a_goal_that_one_set_misses_fails(part: str, own: tuple[float, float]) -> None:
    module, *figures = FIGURES[part]
    failed = [claim["claim"] for claim in module.claims(measured(figures, own)) if not claim["holds"]]
    missed = figures[own[0] == 100.0]
    assert len(failed) == 3
    assert all(missed in claim for claim in failed)


@pytest.mark.parametrize("part", FIGURES)
def test_a_variant_that_was_not_measured_fails(part: str) -> None:
    module, *figures = FIGURES[part]
    runs = measured(figures)
    del runs[two_sets.RULES]
    assert not any(claim["holds"] for claim in module.claims(runs))
    assert not any(claim["holds"] for claim in module.claims({}))
    assert module.summary({}) == {}


def test_one_repetition_proves_nothing() -> None:
    runs = {name: each[:1] for name, each in measured(("alerts_max_ms", "reports_mean_ms")).items()}
    assert sum(claim["holds"] for claim in under_attach.claims(runs)) == 2


def test_figures_are_of_all_rows_of_a_set() -> None:
    ages = {"alerts-10": np.array([0.1, 0.2]), "alerts-40": np.array([0.9]), "reports-10": np.array([2.0])}
    assert under_attach.figures(ages) == pytest.approx(
        {"alerts_mean_ms": 400.0, "alerts_max_ms": 900.0, "reports_mean_ms": 2000.0, "reports_max_ms": 2000.0}
    )
