"""Readings of counters stay cheap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.attachment.pace import PART, STEP, Pace

ROUNDS = 400


@given(st.floats(0.0, 0.1), st.floats(0.0, 0.1))
def test_what_readings_cost_is_bounded_or_they_are_as_seldom_as_may_be(first: float, second: float) -> None:
    pace = Pace(0.2, 1.0)
    for cost in (first, second):
        for _ in range(ROUNDS):
            pace.add(cost)
        assert 0.2 <= pace.period <= 1.0
        assert cost / pace.period <= PART * 1.001 or pace.period == 1.0
        assert pace.period <= max(0.2, cost / PART + 2 * STEP), "no more seldom than they have to be"


def test_a_single_dear_round_changes_little() -> None:
    pace = Pace(0.2, 1.0)
    for _ in range(ROUNDS):
        pace.add(PART / 10)
    pace.add(2 * PART)
    assert pace.period == pytest.approx(0.2)
