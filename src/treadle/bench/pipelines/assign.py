"""`treadle bench pipelines --part assign`: does it matter which slot owns which hop (Haren's f) if their costs differ?

All queries read the same number of rows, and a row of the most expensive one costs 20 times as much as one of the
cheapest. Idle slot time is the time in which a slot was free while a hop waited for any slot, as a share of the time of
all slots. There are no express slots, which belong to no group. All variants take turns in one session; figures are
compared within a repetition.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.bench import intervals
from treadle.bench.claims import Claims, Deaths, at_most, in_turns
from treadle.bench.pipelines.multi_class import measure
from treadle.enforce.gate.slots import usable_cores
from treadle.workloads.multi_class import Chain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[str, float], None]
VARIANTS = ("none", "random", "load-balance", "adaptive")
QUERIES = 12
SPREAD = 20.0
"""The cost of a row in the most expensive query, by that in the cheapest."""
CHEAPEST = 25e-6
"""CPU seconds for a row of the cheapest query."""
LOAD = 0.6
"""Load as a share of all cores. Spark's cost for each batch is added to it. Where all hops always have rows to process,
no slot is idle under any assignment.
"""
IDLE = "slot_idle_share"
LEAST_IDLE = 1e-6
"""Least share that is compared: a share of 0 has no ratio."""
Runs = Mapping[str, Sequence[Mapping[str, float]]]
"""By variant: the figures of each repetition."""


def chains(unit: float, *, load: float = LOAD, cores: float | None = None) -> tuple[Chain, ...]:
    """The queries, cheapest first. `unit` is the seconds of a burn (`burn.calibrate`), `load` a share of all cores."""
    costs = CHEAPEST * SPREAD ** (np.arange(QUERIES) / (QUERIES - 1))
    rate = load * (cores or usable_cores()) / float(costs.sum())
    burns = [max(1, round(cost / unit)) for cost in costs.tolist()]
    return tuple(Chain(f"q{number}", False, rate, (burn,), (1.0,)) for number, burn in enumerate(burns))


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
    """Return by assignment the figures of each repetition."""
    queries, found = chains(unit), {name: list[dict[str, float]]() for name in VARIANTS}
    options: dict[str, Any] = {"layout": "fused", "policy": "fcfs", "slots": 2 * usable_cores(), "express": 0}
    measure(spark, queries, "assign", seconds=1.0, warm=warm, **options)  # the JVM compiles the code of these queries
    total = repetitions * len(VARIANTS)

    def measure_one(name: str, number: int) -> None:
        def told(what: str, part: float) -> None:
            tell(f"assign: {what} ({number + 1} of {total})", (number + part) / total)

        measured = measure(spark, queries, name, seconds=seconds, warm=warm, progress=told, **options, assign=name)
        found[name].append(measured.figures())

    in_turns(VARIANTS, repetitions, measure_one, deaths)
    return found


def figures(runs: Runs) -> dict[str, Any]:
    """Return the means of all repetitions, and the interval of the ratio of idle slot time to that of random."""
    made: dict[str, Any] = {}
    for name, each in runs.items():
        if each:
            shown = {figure: round(statistics.fmean(run[figure] for run in each), 4) for figure in each[0]}
            made[f"assign: {name}"] = shown | {f"{IDLE} : random": intervals.of_ratios(_ratios(runs, name))}
    return made


def claims(runs: Runs) -> Claims:
    """Return the claim: slots are idle for less time if hops are assigned by their load than if they are at random."""
    text = "assign: idle slot time, load-balance : random"
    return [
        at_most(text, lambda: statistics.geometric_mean(_ratios(runs, "load-balance")), 1.0),
        at_most(
            f"{text}, greatest of its interval", lambda: intervals.of_ratios(_ratios(runs, "load-balance"))[1], 1.0
        ),
    ]


def _ratios(runs: Runs, name: str) -> list[float]:
    """Return by repetition the idle slot time of a variant by that of random; KeyError if one has no figures."""
    if not runs.get(name) or not runs.get("random"):
        raise KeyError(name)
    pairs = zip(runs[name], runs["random"], strict=False)
    return [max(a[IDLE], LEAST_IDLE) / max(b[IDLE], LEAST_IDLE) for a, b in pairs]
