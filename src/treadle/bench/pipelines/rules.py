"""`treadle bench pipelines --part rules`: do two sets of queries at one gate each reach a goal of their own?

The queries are those of the part `classes`: the urgent ones, whose rows come in bursts, are the alerts, which want a
small maximum latency (FCFS); the others are reports, which want a small mean latency (highest-rate). At a gate sets are
classes, and alerts go first. Rules are compared with one policy for all queries, and with one policy in both sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.bench import two_sets
from treadle.bench.claims import Claims, Deaths, in_turns
from treadle.bench.pipelines.multi_class import measure
from treadle.bench.two_sets import BOTH_FCFS, BOTH_HR, FCFS, HR, RULES, Runs
from treadle.workloads.multi_class import Chain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[str, float], None]


def rules(alerts: str, reports: str) -> list[dict[str, Any]]:
    """Return the two rules with these policies."""
    return [
        {"queries": "high*", "policy": alerts, "priority": 10},
        {"queries": "low*", "policy": reports, "priority": 1},
    ]


VARIANTS: Mapping[str, dict[str, Any]] = {
    FCFS: {"policy": FCFS},
    HR: {"policy": HR},
    BOTH_FCFS: {"rules": rules(FCFS, FCFS)},
    BOTH_HR: {"rules": rules(HR, HR)},
    RULES: {"rules": rules(FCFS, HR)},
}
ALERTS_MAX, REPORTS_MEAN = "high_max_ms", "low_mean_ms"
BETTER = ((ALERTS_MAX, HR), (REPORTS_MEAN, FCFS), (REPORTS_MEAN, BOTH_FCFS))
"""The figure of a set, and the variant with one policy that rules must surely beat at it."""
AS_GOOD = ((ALERTS_MAX, FCFS), (ALERTS_MAX, BOTH_HR), (REPORTS_MEAN, HR))
"""The figure of a set, and the variant with one policy to which rules must come near. Alerts go first in both sets, so
that little is left for the policy among them."""


def run(
    spark: SparkSession,
    queries: Sequence[Chain],
    deaths: Deaths,
    tell: Progress,
    *,
    repetitions: int,
    seconds: float,
    warm: float,
) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each repetition by variant, with keys such as "rules: highest-rate"."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    total = repetitions * len(VARIANTS)

    def measure_one(name: str, number: int) -> None:
        def told(what: str, part: float) -> None:
            tell(f"rules: {what} ({number + 1} of {total})", (number + part) / total)

        options = {"layout": "fused", **VARIANTS[name]}
        found[name].append(
            measure(spark, queries, name, seconds=seconds, warm=warm, progress=told, **options).figures()
        )

    in_turns(list(VARIANTS), repetitions, measure_one, deaths)
    return {name: each for name, each in found.items() if each}


def summary(runs: Runs) -> dict[str, Any]:
    """Return by variant the means of all repetitions, and the interval of the ratio to `rules` of both figures."""
    found = two_sets.summary(runs, (ALERTS_MAX, REPORTS_MEAN))
    return {f"rules: {name}": each for name, each in found.items()}


def claims(runs: Runs) -> Claims:
    """Return the claims: rules beat one policy at the goal that it is not made for, and come near it at its own."""
    return two_sets.claims(runs, BETTER, AS_GOOD)
