"""Objectives that change in the middle of a run, and a restart, as the simulator shows them."""

from __future__ import annotations

import pytest

from treadle.bench.simulator import switch


def test_the_choice_follows_new_objectives_without_a_second_warm_up_and_a_restart_is_better_with_what_was_learned() -> (
    None
):
    found = switch.run(seeds=2)
    assert found["best_for_memory"] in ("chain", "mtiq")
    assert [claim for claim in switch.claims(found) if not claim["holds"]] == []


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("follows_after", [0.0, 10.0]),
        ("best_after", [1.0, 0.5]),
        ("warm_ups_after", [0, 1]),
        ("first_minute_with", [1.0, 3.0]),
    ],
)
def test_each_claim_fails_where_one_seed_fails(figure: str, value: list[float]) -> None:
    good = {
        "follows_after": [0.0, 1.0],
        "best_after": [1.0, 0.95],
        "warm_ups_after": [0, 0],
        "first_minute_without": [2.0, 2.0],
        "first_minute_with": [1.0, 1.5],
    }
    assert all(claim["holds"] for claim in switch.claims(good))
    assert [claim["holds"] for claim in switch.claims({**good, figure: value})].count(False) == 1
    assert not any(claim["holds"] for claim in switch.claims({}))
