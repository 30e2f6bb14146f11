"""What `bench attach` makes of what it measured: where the OS is saturated, and what is claimed of it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Self

import numpy as np
import pytest

from treadle.bench.attach import comparisons, rig

Runs = dict[tuple[str, float], dict[str, float]]


def runs(behind: dict[str, list[float]], rates: list[float]) -> Runs:
    """Each variant's seconds behind at each rate; a row takes ten times as long as what waits, and 0.1 s."""
    return {
        (name, rate): {"behind_s": seconds, "p50_ms": 100.0 + 1e4 * seconds, "p99_ms": 200.0 + 1e4 * seconds}
        for name, each in behind.items()
        for rate, seconds in zip(rates, each, strict=True)
    }


def test_rates_rise_until_both_have_fallen_behind() -> None:
    assert comparisons.worth_more({}, [])
    behind = {"os": [0.1, 0.9, 2.0], "treadle": [0.1, 0.1, 0.9]}
    rates = [1000.0, 1050.0, 1100.0]
    by_rate = runs(behind, rates)
    assert comparisons.worth_more(by_rate, rates[:1])
    assert comparisons.worth_more(by_rate, rates[:2])
    assert not comparisons.worth_more(by_rate, rates)


def test_those_that_are_compared_have_a_turn_between_the_others() -> None:
    order = comparisons.turns(["os", "a", "treadle", "b", "c", "d"])
    assert order == ["os", "treadle", "a", "d", "os", "treadle", "b", "os", "treadle", "c"]


def test_a_rate_kept_up_with_after_one_that_was_not_is_no_reason_to_go_on() -> None:
    rates = [1000.0, 1050.0]
    assert not comparisons.worth_more(runs({"os": [0.9, 0.1], "treadle": [0.9, 0.1]}, rates), rates)


def test_figures_are_those_at_the_first_rate_that_the_os_does_not_keep_up_with() -> None:
    rates = [1000.0, 1050.0, 1100.0]
    figures = comparisons.at_saturation(
        runs({"os": [0.1, 0.9, 2.0], "treadle": [0.1, 0.1, 0.9]}, rates), rates, ["os", "treadle"]
    )
    assert figures["saturation_rows_per_s"] == 1050.0
    assert figures["os"]["sustained_rows_per_s"] == 1000.0
    assert figures["treadle"]["sustained_rows_per_s"] == 1050.0
    p50, p99, sustained = comparisons.claims({"chain": figures}, ["chain"])
    assert p50["measured"] == pytest.approx(9100 / 1100, abs=0.01)
    assert p99["measured"] == pytest.approx(9200 / 1200, abs=0.01)
    assert sustained["measured"] == pytest.approx(1.05)
    assert all(made["holds"] for made in (p50, p99, sustained))


def test_claims_fail_where_treadle_is_no_better() -> None:
    rates = [1000.0, 1050.0]
    figures = comparisons.at_saturation(
        runs({"os": [0.1, 0.9], "treadle": [0.9, 0.9]}, rates), rates, ["os", "treadle"]
    )
    assert [made["holds"] for made in comparisons.claims({"chain": figures}, ["chain"])] == [False, True, False]


def contended(mean: float, rows: float) -> dict[str, float]:
    return {"high_mean_ms": mean, "high_p99_ms": 2 * mean, "rows_per_s": rows}


def test_contention_is_judged_by_the_default_whichever_enforcer_was_best() -> None:
    found = {"os": contended(10_000.0, 100.0), "treadle": contended(400.0, 95.0), "realtime": contended(10.0, 110.0)}
    assert [made["holds"] for made in comparisons.claims({"contention": found}, ["contention"])] == [True, True, True]
    found["treadle"] = contended(600.0, 85.0)
    made = comparisons.claims({"contention": found}, ["contention"])
    assert [each["holds"] for each in made] == [False, False, False]
    assert made[0] == {
        "claim": "contention: high_mean_ms, os : treadle",
        "aim": "at least 20",
        "measured": pytest.approx(16.67, abs=0.01),
        "holds": False,
    }


def test_the_default_is_what_attach_does_with_priorities_and_nothing_else() -> None:
    assert comparisons.CONTENTION["treadle"] == {"priorities": comparisons.URGENT}
    assert comparisons.CHAIN["treadle"] == {}


class Stuck:
    """A rig on which the second variant leaves the application stalled."""

    def __init__(self, *_: object) -> None:
        self.measured = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def capacity(self, _: float) -> float:
        return 1000.0

    def measure(self, rates: dict[str, float], _: float) -> rig.Outcome:
        self.measured += 1
        if self.measured > 1:
            raise rig.StalledError("waiting rows are not processed within 120 s", remedy="end other programs")
        none: dict[str, int] = dict.fromkeys(rates, 0)
        queued = dict.fromkeys(rates, np.zeros(2, dtype=np.int64))
        return rig.Outcome(dict.fromkeys(rates, np.ones(3)), dict.fromkeys(rates, 50), none, queued, 1.0)


def test_a_variant_that_dies_is_named_and_what_was_measured_before_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparisons, "Rig", Stuck)
    monkeypatch.setattr(comparisons, "attached", lambda *_: nullcontext())
    monkeypatch.setattr(comparisons, "_saturation", lambda *_: 1000.0)
    found = comparisons.run(seconds=1.0)
    why = "StalledError: waiting rows are not processed within 120 s (end other programs)"
    assert found["died"] == {"contention: random": why, "chain: treadle at 950 rows/s": why}
    assert set(found["contention"]) == {"os"}
    assert set(found["chain"]["unfinished"]["950"]) == {"os"}
    assert [each["measured"] for each in found["claims"]] == [None] * 6
    assert not any(each["holds"] for each in found["claims"])


def test_a_row_belongs_to_the_phase_that_it_came_in_and_is_under_way_until_it_is_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    came = [(5, 15), (12, 25), (18, 19), (22, 24)]
    assert [rig._ages(came, *phase).tolist() for phase in ((10, 20), (20, 30))] == [[13e-9, 1e-9], [2e-9]]
    monkeypatch.setattr(rig, "MOMENTS", 5)
    assert rig._inside(came, 10, 14).tolist() == [1, 1, 2, 2, 2]
    assert rig._inside(came, 22, 26).tolist() == [2, 2, 1, 0, 0]
