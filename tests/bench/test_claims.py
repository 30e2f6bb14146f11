"""Each benchmark has claims about its defaults, by figures made up here: they hold and fail as they must."""

from __future__ import annotations

import math
from typing import Any

import pytest

from treadle.bench import core
from treadle.bench.attach import loop
from treadle.bench.claims import Claims, Deaths, at_least, at_most, fails, in_turns
from treadle.bench.pipelines import channels, hops

NOTHING: dict[str, float] = {}
LOOP: dict[str, Any] = {
    "hundred": {"threads": 110, "cpu_fraction": 0.009, "round_ms": {"all": 5.0}},
    "thousand": {"threads": 1010, "cpu_fraction": 0.039},
    "with_agent": {"low": 0.985, "high": 1.004},
    "processes_baseline_ms": 500.0,
}


def test_a_claim_says_what_is_wanted_what_was_measured_and_whether_it_holds() -> None:
    assert at_least("a : b", 2.0, 1.5) == {"claim": "a : b", "aim": "at least 1.5", "measured": 2.0, "holds": True}
    assert at_most("cores", 0.02, 0.01) == {"claim": "cores", "aim": "at most 0.01", "measured": 0.02, "holds": False}
    assert at_least("a", 1.5, 1.5)["holds"]
    assert at_most("a", 1.5, 1.5)["holds"]


@pytest.mark.parametrize("missing", [math.nan, lambda: NOTHING["a"], lambda: 1.0 / 0.0])
def test_what_was_not_measured_does_not_hold(missing: Any) -> None:
    for made in (at_least("a", missing, 0.0), at_most("a", missing, 9.0)):
        assert (made["measured"], made["holds"]) == (None, False)


@pytest.mark.parametrize(
    ("claims", "good", "bad"),
    [
        (
            core.claims,
            {"round_cpu_fraction_50ms_100_instances": 0.009},
            {"round_cpu_fraction_50ms_100_instances": 0.011},
        ),
        (
            hops.claims,
            {"spark": {"batches_per_s": 15.0}, "treadle": {"batches_per_s": 60.0}},
            {"spark": {"batches_per_s": 15.0}, "treadle": {"batches_per_s": 14.0}},
        ),
        (
            channels.claims,
            {f"{name}_rows_per_s": 3.0 if name == "embedded" else 1.0 for name in ("embedded", *channels.OTHERS)},
            {f"{name}_rows_per_s": 3.0 if name == "kafka" else 2.0 for name in ("embedded", *channels.OTHERS)},
        ),
        (loop.claims, LOOP, LOOP | {"processes_baseline_ms": 4.0}),
        (loop.claims, LOOP, LOOP | {"hundred": {**LOOP["hundred"], "cpu_fraction": 0.011}}),
        (loop.claims, LOOP, LOOP | {"thousand": {**LOOP["thousand"], "threads": 900}}),
        (loop.claims, LOOP, LOOP | {"with_agent": {"low": 0.97, "high": 0.989}}),
        (loop.claims, LOOP, LOOP | {"with_agent": {"low": 1.011, "high": 1.03}}),
    ],
)
def test_each_benchmark_can_fail(claims: Any, good: dict[str, Any], bad: dict[str, Any]) -> None:
    held: Claims = claims(good)
    assert held
    assert not fails({"claims": held})
    assert fails({"claims": claims(bad)})


def test_where_there_is_nothing_to_compare_a_round_with_nothing_is_claimed_of_it() -> None:
    assert len(loop.claims(LOOP | {"processes_baseline_ms": None})) == len(loop.claims(LOOP)) - 1
    assert not any(claim["holds"] for claim in loop.claims({}))


def test_a_variant_that_dies_has_no_further_turn_and_the_others_go_on() -> None:
    deaths, had = Deaths(), []

    def measure(name: str, number: int) -> None:
        had.append((name, number))
        if name == "b":
            raise ValueError("no rows\ncame")

    in_turns(["a", "b", "c"], 2, measure, deaths)
    assert had == [("a", 0), ("b", 1), ("c", 2), ("a", 3), ("c", 5)]
    assert deaths.figures() == {"died": {"b": "ValueError: no rows came"}}
    assert fails({"claims": [], **deaths.figures()})
    had.clear()
    in_turns(["a", "b", "c"], 2, measure, Deaths(), stop=True)
    assert had == [("a", 0), ("b", 1)]
