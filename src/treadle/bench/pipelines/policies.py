"""`treadle bench pipelines --part policies`: are HR and Chain each best at their own goal, in both layouts?

Lachesis' synthetic queries ask for more than the machine has. In the workload of `--part classes` HR and Chain hardly
differ, since the selectivities of its queries differ far less than their costs. All variants take turns in one session;
figures are compared within a repetition.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.bench import intervals
from treadle.bench.claims import Claims, Deaths, at_least, at_most, in_turns
from treadle.bench.pipelines.multi_class import measure
from treadle.workloads.syn import queries as syn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[str, float], None]
LAYOUTS = {"fused": 20, "hops": 8}
"""By layout: the number of queries. Spark runs about as many queries in both, since in `hops` each operator is one."""
LOAD = 0.9
"""Load as a share of all cores: with Spark's cost for each batch it exceeds the capacity."""
POLICIES: Mapping[str, dict[str, Any]] = {
    "fifo": {"enforce": "none", "policy": "none"},
    "random": {"policy": "random"},
    "fcfs": {"policy": "fcfs"},
    "qs": {"policy": "queue-size"},
    "hr": {"policy": "highest-rate"},
    "chain": {"policy": "chain"},
}
"""The variants: Spark alone, and policies at the gate."""
GOALS = {"hr": "mean_ms", "chain": "queued_rows"}
"""By policy: the figure that should be smallest under it: mean latency of results, or rows that wait anywhere."""
EQUAL = 1.05
"""A policy's figure of up to this factor times the best of the others counts as equal."""
Runs = Mapping[str, Sequence[Mapping[str, float]]]
"""By variant: the figures of each repetition."""


def run(
    spark: SparkSession,
    unit: float,
    deaths: Deaths,
    tell: Progress,
    *,
    repetitions: int,
    seconds: float,
    warm: float,
) -> dict[str, list[dict[str, float]]]:
    """Return by layout and policy, with keys such as "hops: chain", the figures of each repetition."""
    queries = {layout: syn.chains(unit, LOAD, count) for layout, count in LAYOUTS.items()}
    turns = [f"{layout}: {policy}" for policy in POLICIES for layout in LAYOUTS]
    found: dict[str, list[dict[str, float]]] = {turn: [] for turn in turns}
    total = repetitions * len(turns)
    for layout in LAYOUTS:  # the JVM compiles the code of these queries, or the first variants would pay for it
        measure(spark, queries[layout], layout, seconds=1.0, warm=warm, layout=layout, **POLICIES["fifo"])

    def measure_one(turn: str, number: int) -> None:
        layout, policy = turn.split(": ")

        def told(what: str, part: float) -> None:
            tell(f"{what} ({number + 1} of {total})", (number + part) / total)

        options = {"layout": layout, **POLICIES[policy]}
        found[turn].append(
            measure(spark, queries[layout], turn, seconds=seconds, warm=warm, progress=told, **options).figures()
        )

    in_turns(turns, repetitions, measure_one, deaths)
    return found


def figures(runs: Runs) -> dict[str, Any]:
    """Return the means of all repetitions, and for each goal the interval of the ratio to the policy with that goal."""
    made: dict[str, Any] = {}
    for turn, each in runs.items():
        if not each:
            continue
        made[turn] = {figure: round(statistics.fmean(run[figure] for run in each), 4) for figure in each[0]}
        layout = turn.split(": ")[0]
        for policy, figure in GOALS.items():
            if own := runs.get(f"{layout}: {policy}"):
                made[turn][f"{figure} : {policy}"] = intervals.of_ratios(_ratios(each, own, figure))
    return made


def claims(runs: Runs) -> Claims:
    """Return the claims: HR and Chain are each best or equal at their goal, better than the other and than FIFO."""
    made: Claims = []
    for layout in LAYOUTS:
        for policy, figure in GOALS.items():
            others = [name for name in POLICIES if name != policy]
            best = partial(_against, runs, layout, policy, others, figure)
            text = f"{layout}: {figure}, {policy} : the best other"
            made.append(at_most(text, partial(_mean, best), EQUAL))
            made.append(at_most(f"{text}, least of its interval", partial(_least, best), 1.0))
            for name in ("fifo", *(each for each in GOALS if each != policy)):
                worse = partial(_against, runs, layout, name, [policy], figure)
                text = f"{layout}: {figure}, {name} : {policy}, least of its interval"
                made.append(at_least(text, partial(_least, worse), 1.0))
    return made


def _against(runs: Runs, layout: str, policy: str, others: Sequence[str], figure: str) -> list[float]:
    """Return by repetition the ratio of a policy's figure to that of the best other; KeyError if one is missing."""

    def of(name: str) -> Sequence[Mapping[str, float]]:
        if not runs.get(f"{layout}: {name}"):
            raise KeyError(name)
        return runs[f"{layout}: {name}"]

    best = min((of(name) for name in others), key=lambda each: statistics.fmean(run[figure] for run in each))
    return _ratios(of(policy), best, figure)


def _mean(ratios: Callable[[], list[float]]) -> float:
    return statistics.geometric_mean(ratios())


def _least(ratios: Callable[[], list[float]]) -> float:
    return intervals.of_ratios(ratios())[0]


def _ratios(over: Sequence[Mapping[str, float]], under: Sequence[Mapping[str, float]], figure: str) -> list[float]:
    return [a[figure] / b[figure] for a, b in zip(over, under, strict=False)]
