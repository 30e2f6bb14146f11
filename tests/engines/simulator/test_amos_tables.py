"""AMoS, section 2.2: Tables 1 and 2 value by value, from the shipped file, through the loop and the policies."""

from __future__ import annotations

import functools

import pytest

from treadle.engines.simulator import scenario
from treadle.engines.simulator.run import Outcome, simulate

FIFO = {
    # time: Q1, Q2, Q3, total, output
    0.0: (0, 0, 0, 0, 0),
    1.0: (2, 0, 0, 2, 0),
    1.5: (1, 0.25, 0, 1.25, 0),
    1.75: (1, 0, 0.125, 1.125, 0),
    2.0: (3, 0, 0, 3, 0.1),
    2.5: (2, 0.25, 0, 2.25, 0.1),
    3.0: (4, 0, 0, 4, 0.2),
    3.5: (3, 0.25, 0, 3.25, 0.2),
    4.0: (3, 0, 0, 3, 0.3),
}
MTIQ = {
    0.0: (0, 0, 0, 0, 0),
    1.0: (2, 0, 0, 2, 0),
    1.5: (1, 0.25, 0, 1.25, 0),
    2.0: (2, 0.5, 0, 2.5, 0),
    2.5: (1, 0.75, 0, 1.75, 0),
    3.0: (2, 1, 0, 3, 0),
    3.5: (1, 1.25, 0, 2.25, 0),
    4.0: (1, 1, 0.125, 2.125, 0),
}


@functools.cache
def run(policy: str) -> Outcome:
    return simulate(scenario.load("amos-example"), policy)


def rows(policy: str) -> dict[float, list[float]]:
    series = run(policy).series()
    table = {row[0]: row[1:] for row in series}
    assert len(table) == len(series), "a moment has one row"
    return table


@pytest.mark.parametrize("time", FIFO)
def test_table_1_fifo(time: float) -> None:
    assert rows("fifo")[time] == pytest.approx(FIFO[time], abs=1e-9)


@pytest.mark.parametrize("time", MTIQ)
def test_table_2_mtiq(time: float) -> None:
    assert rows("mtiq")[time] == pytest.approx(MTIQ[time], abs=1e-9)


def test_the_paper_left_out_only_moments_within_a_unit() -> None:
    """FIFO's tables skip what happens between two rows that they show: each tuple has three services."""
    between = sorted(set(rows("fifo")) - set(FIFO))
    assert [time for time in between if time < 4.0] == [2.75, 3.75]
    between = sorted(set(rows("mtiq")) - set(MTIQ))
    assert [time for time in between if time < 4.0] == [3.75]


@pytest.mark.parametrize("policy", ["fifo", "mtiq", "chain"])
def test_every_policy_empties_the_plan_at_seven_with_the_same_output(policy: str) -> None:
    table = rows(policy)
    assert max(table) == 7.0
    assert table[7.0] == pytest.approx([0, 0, 0, 0, 0.6], abs=1e-9)
    assert all(row[3] > 0 for time, row in table.items() if 1.0 <= time < 7.0), "work is never done before its end"


@pytest.mark.parametrize("policy", ["fifo", "mtiq", "chain"])
def test_every_row_adds_up(policy: str) -> None:
    table = rows(policy)
    assert list(table) == sorted(table)
    outputs = [row[4] for row in table.values()]
    assert outputs == sorted(outputs)
    for q1, q2, q3, total, _ in table.values():
        assert total == pytest.approx(q1 + q2 + q3)


def test_chain_runs_the_first_operator_whenever_it_can() -> None:
    """Its envelope is operator 1 alone, then operators 2 and 3 together: so never more tuples than the others."""
    chain, fifo, mtiq = (rows(policy) for policy in ("chain", "fifo", "mtiq"))
    for time in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0):
        assert chain[time][3] <= min(fifo[time][3], mtiq[time][3]) + 1e-9
    assert [chain[time][0] for time in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)] == [2, 1, 2, 1, 2, 1, 0]


def test_fifo_puts_results_out_evenly_and_mtiq_at_the_end() -> None:
    fifo, mtiq = rows("fifo"), rows("mtiq")
    assert [fifo[float(time)][4] for time in range(1, 8)] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert mtiq[4.0][4] == 0.0
