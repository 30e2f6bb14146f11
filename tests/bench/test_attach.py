"""What `bench attach` makes of what it measured: where the OS is saturated, and what is claimed of it."""

from __future__ import annotations

import pytest

from treadle.bench import attach

Runs = dict[tuple[str, float], dict[str, float]]


def runs(behind: dict[str, list[float]], rates: list[float]) -> Runs:
    """Each variant's seconds behind at each rate; a row takes ten times as long as what waits, and 0.1 s."""
    return {
        (name, rate): {"behind_s": seconds, "p50_ms": 100.0 + 1e4 * seconds, "p99_ms": 200.0 + 1e4 * seconds}
        for name, each in behind.items()
        for rate, seconds in zip(rates, each, strict=True)
    }


def test_rates_rise_until_both_have_fallen_behind() -> None:
    assert attach.worth_more({}, [])
    behind = {"os": [0.1, 0.9, 2.0], "treadle": [0.1, 0.1, 0.9]}
    rates = [1000.0, 1050.0, 1100.0]
    by_rate = runs(behind, rates)
    assert attach.worth_more(by_rate, rates[:1])
    assert attach.worth_more(by_rate, rates[:2])
    assert not attach.worth_more(by_rate, rates)


def test_those_that_are_compared_have_a_turn_between_the_others() -> None:
    order = attach.turns(["os", "a", "treadle", "b", "c", "d"])
    assert order == ["os", "treadle", "a", "d", "os", "treadle", "b", "os", "treadle", "c"]


def test_a_rate_kept_up_with_after_one_that_was_not_is_no_reason_to_go_on() -> None:
    rates = [1000.0, 1050.0]
    assert not attach.worth_more(runs({"os": [0.9, 0.1], "treadle": [0.9, 0.1]}, rates), rates)


def test_figures_are_those_at_the_first_rate_that_the_os_does_not_keep_up_with() -> None:
    rates = [1000.0, 1050.0, 1100.0]
    figures = attach.at_saturation(
        runs({"os": [0.1, 0.9, 2.0], "treadle": [0.1, 0.1, 0.9]}, rates), rates, ["os", "treadle"]
    )
    assert figures["saturation_rows_per_s"] == 1050.0
    assert figures["os"]["sustained_rows_per_s"] == 1000.0
    assert figures["treadle"]["sustained_rows_per_s"] == 1050.0
    p50, p99, sustained = attach.claims({"chain": figures})
    assert p50["ratio"] == pytest.approx(9100 / 1100, abs=0.01)
    assert p99["ratio"] == pytest.approx(9200 / 1200, abs=0.01)
    assert sustained["ratio"] == pytest.approx(1.05)
    assert all(made["holds"] for made in (p50, p99, sustained))


def test_claims_fail_where_treadle_is_no_better() -> None:
    rates = [1000.0, 1050.0]
    figures = attach.at_saturation(runs({"os": [0.1, 0.9], "treadle": [0.9, 0.9]}, rates), rates, ["os", "treadle"])
    assert [made["holds"] for made in attach.claims({"chain": figures})] == [False, True, False]


def test_a_row_belongs_to_the_phase_that_it_came_in_and_is_under_way_until_it_is_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    came = [(5, 15), (12, 25), (18, 19), (22, 24)]
    assert [attach._ages(came, *phase).tolist() for phase in ((10, 20), (20, 30))] == [[13e-9, 1e-9], [2e-9]]
    monkeypatch.setattr(attach, "MOMENTS", 5)
    assert attach._inside(came, 10, 14).tolist() == [1, 1, 2, 2, 2]
    assert attach._inside(came, 22, 26).tolist() == [2, 2, 1, 0, 0]
