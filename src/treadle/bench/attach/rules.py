"""`treadle bench attach --part rules`: do two sets of queries in one application each reach a goal of their own?

Alerts want a small maximum latency (FCFS), reports a small mean latency (highest-rate). Each set has three queries in
Real-Time Mode, of which the most expensive one costs 16 times as much for a row as the cheapest one. Both sets ask for
the same work, together for more than the core has, and have the same priority: so what differs is the policy alone.
Rules are compared with one policy for all queries, and with one policy in both sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from treadle.bench import two_sets
from treadle.bench.attach import policies
from treadle.bench.attach.rig import Rig, attached
from treadle.bench.claims import Claims, Deaths, in_turns
from treadle.bench.two_sets import BOTH_FCFS, BOTH_HR, FCFS, HR, RULES, Runs
from treadle.model import Floats
from treadle.workloads.realtime import Chain

Progress = Callable[[str, float], None]
ALERTS, REPORTS = "alerts", "reports"
QUERIES = tuple(Chain(f"{which}-{cost}", (cost,) * 3) for which in (ALERTS, REPORTS) for cost in (10, 40, 160))
LOAD = 1.15
"""Load as a share of the core's capacity."""


def rules(alerts: str, reports: str) -> list[dict[str, Any]]:
    """Return the two rules with these policies."""
    return [{"queries": f"{ALERTS}-*", "policy": alerts}, {"queries": f"{REPORTS}-*", "policy": reports}]


VARIANTS: Mapping[str, dict[str, Any] | None] = {
    "os": None,
    FCFS: {"policy": FCFS},
    HR: {"policy": HR},
    BOTH_FCFS: {"rules": rules(FCFS, FCFS)},
    BOTH_HR: {"rules": rules(HR, HR)},
    RULES: {"rules": rules(FCFS, HR)},
}
ALERTS_MAX, REPORTS_MEAN = f"{ALERTS}_max_ms", f"{REPORTS}_mean_ms"
BETTER = ((ALERTS_MAX, HR), (ALERTS_MAX, BOTH_HR), (REPORTS_MEAN, FCFS), (REPORTS_MEAN, BOTH_FCFS))
"""The figure of a set, and the variant with one policy that rules must surely beat at it."""
AS_GOOD = ((ALERTS_MAX, FCFS), (REPORTS_MEAN, HR))
"""The figure of a set, and the variant with one policy, made for this figure, to which rules must come near."""


def run(repetitions: int, seconds: float, tell: Progress, deaths: Deaths) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each repetition by variant. Variants take turns on one application."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    with Rig(QUERIES) as rig:
        tell("rules: warming up", 0.0)
        rates = policies.rates_of(LOAD * policies.warmed_up(rig, QUERIES, seconds), QUERIES)

        def measure(name: str, number: int) -> None:
            tell(f"rules: {name}", number / (repetitions * len(VARIANTS)))
            with attached(rig, VARIANTS[name]):
                outcome = rig.measure(rates, seconds)
            found[name].append(figures(outcome.ages) | {"rows_per_s": sum(outcome.rows.values()) / seconds})

        in_turns(list(VARIANTS), repetitions, measure, deaths, stop=True)
    return {name: each for name, each in found.items() if each}


def figures(ages: Mapping[str, Floats]) -> dict[str, float]:
    """Return mean and maximum latency of each set, from the latencies of all rows by query."""
    found: dict[str, float] = {}
    for which in (ALERTS, REPORTS):
        own = np.concatenate([each for name, each in ages.items() if name.startswith(which)])
        found |= {f"{which}_mean_ms": float(own.mean()) * 1e3, f"{which}_max_ms": float(own.max()) * 1e3}
    return found


def summary(runs: Runs) -> dict[str, Any]:
    """Return the figures of each variant, and those of the others as ratios to `rules`."""
    return two_sets.summary(runs, (ALERTS_MAX, REPORTS_MEAN))


def claims(runs: Runs) -> Claims:
    """Return the claims: rules beat one policy at the goal that it is not made for, and come near it at its own."""
    return two_sets.claims(runs, BETTER, AS_GOOD)
