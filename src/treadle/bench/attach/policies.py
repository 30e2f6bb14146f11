"""`treadle bench attach --part policies|uneven|batches|slots`: does each policy reach its goal under `treadle attach`?

Five queries of different cost, selectivity and rate ask for nearly all of one core, or for more: in Real-Time Mode with
three stages each, or in micro-batches with a shuffle into 200 partitions. All policies and the OS alone take turns on
one running application. A separate observer reads the queues in every variant, so that its cost is the same for all.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from treadle.bench import intervals
from treadle.bench.attach.rig import SETTLE, Outcome, Rig, attached
from treadle.bench.claims import Claims, Deaths, at_least, at_most, in_turns
from treadle.engines.spark.application import Application
from treadle.engines.spark.engine import SparkEngine
from treadle.engines.spark.threads.layout import of_driver
from treadle.engines.spark.threads.places import WHOLE
from treadle.errors import TreadleError
from treadle.model import Floats
from treadle.workloads import realtime
from treadle.workloads.producer import SIXTEEN
from treadle.workloads.realtime import Chain

Progress = Callable[[str, float], None]
HIGH = "q40"
QUERIES = (
    Chain("q10", (10, 10, 10)),
    Chain("q20", (20, 20, 20), keeps=8),
    Chain(HIGH, (40, 40, 40)),
    Chain("q80", (80, 80, 80), keeps=4),
    Chain("q160", (160, 160, 160)),
)
PARTITIONS, TASK_SLOTS = 200, 4
LOADS = {"near": 0.95, "above": 1.15}
"""Loads as shares of the core's capacity."""
EVEN, UNEVEN = (1, 1, 1, 1, 1), (3, 2, 1, 1, 1)
"""Relative amounts of work, in hashes per second, that the queries ask for."""
VARIANTS: Mapping[str, dict[str, Any] | None] = {
    "os": None,
    "random": {"policy": "random"},
    "queue-size": {"policy": "queue-size"},
    "highest-rate": {"policy": "highest-rate"},
    "fcfs": {"policy": "fcfs"},
    "chain": {"policy": "chain"},
    "multi-class": {"policy": "multi-class", "priorities": {HIGH: 10.0}},
    "congestion-aware": {"policy": "congestion-aware"},
}
SLOTS: Mapping[str, dict[str, Any] | None] = {
    name: None if options is None else {**options, "slots": "auto"} for name, options in VARIANTS.items()
}
"""The same with `--slots auto`: batches wait for their turn before they read their rows."""
WARM_UPS = ("random", "highest-rate", "queue-size")
"""Variants that run once before anything is measured."""
GOALS = {
    "highest-rate": "mean_ms",
    "fcfs": "max_ms",
    "queue-size": "queue_cv",
    "chain": "rows_inside",
    "multi-class": "high_mean_ms",
}
"""By policy: the figure that should be smallest under it."""
PERIOD = 0.5
"""Seconds between two samples of the queues."""


def run(
    repetitions: int, seconds: float, tell: Progress, deaths: Deaths, loads: Sequence[str] = tuple(LOADS)
) -> dict[str, Any]:
    """Return by load and variant the means of all repetitions, and the ratios to the OS alone."""
    return _run(Rig(QUERIES), QUERIES, EVEN, repetitions, seconds, SETTLE, tell, deaths, loads)


def run_uneven(
    repetitions: int, seconds: float, tell: Progress, deaths: Deaths, loads: Sequence[str] = ("above",)
) -> dict[str, Any]:
    """Run the same as `run`, but two queries ask for more work than the others.

    If all queries ask for the same work, the OS divides the core evenly and delays all equally, which is already the
    goal of FCFS and queue-size. Here the OS delays only two of them.
    """
    return _run(Rig(QUERIES), QUERIES, UNEVEN, repetitions, seconds, SETTLE, tell, deaths, loads)


def run_batches(
    repetitions: int,
    seconds: float,
    tell: Progress,
    deaths: Deaths,
    loads: Sequence[str] = ("near",),
    variants: Mapping[str, dict[str, Any] | None] = VARIANTS,
) -> dict[str, Any]:
    """Run the same as `run` in micro-batches. A batch lasts for seconds, so settling and measuring take longer."""
    queries = [replace(query, costs=query.costs[:2]) for query in QUERIES]

    def start(servers: str, core: int | None) -> realtime.Application:
        return realtime.Application(queries, servers, batch=None, core=core, partitions=PARTITIONS, slots=TASK_SLOTS)

    rig = Rig(queries, application=start)
    return _run(rig, queries, EVEN, repetitions, 2 * seconds, seconds, tell, deaths, loads, variants)


def run_slots(
    repetitions: int, seconds: float, tell: Progress, deaths: Deaths, loads: Sequence[str] = ("near",)
) -> dict[str, Any]:
    """Run the same as `run_batches`, but only one batch runs at a time."""
    return run_batches(repetitions, seconds, tell, deaths, loads, SLOTS)


def _run(
    rig: Rig,
    queries: Sequence[Chain],
    shares: Sequence[float],
    repetitions: int,
    seconds: float,
    settle: float,
    tell: Progress,
    deaths: Deaths,
    loads: Sequence[str],
    variants: Mapping[str, dict[str, Any] | None] = VARIANTS,
) -> dict[str, Any]:
    found: dict[str, dict[str, list[dict[str, float]]]] = {load: {name: [] for name in variants} for load in loads}
    with rig:
        tell("policies: warming up", 0.0)
        work = warmed_up(rig, queries, seconds, variants)
        turns = [f"{load}: {name}" for load in loads for name in variants]

        def measure(turn: str, number: int) -> None:
            load, name = turn.split(": ")
            tell(f"policies: {name}, {load} saturation", number / (repetitions * len(turns)))
            with attached(rig, variants[name]), _observed(rig.application.pid) as queues:
                outcome = rig.measure(rates_of(LOADS[load] * work, queries, shares), seconds, settle)
            found[load][name].append(_figures(outcome, queues, seconds))

        in_turns(turns, repetitions, measure, deaths, stop=True)
    return {load: _compared(each) for load, each in found.items()}


def claims(found: Mapping[str, Any], part: str = "policies") -> Claims:
    """Return the claims: each policy is best at its own goal and significantly better than the OS; `random` is not."""
    made: Claims = []
    for level, variants in found.items():
        load = level if part == "policies" else f"{part}, {level}"
        for policy, figure in GOALS.items():

            def best(policy: str = policy, figure: str = figure, variants: Mapping[str, Any] = variants) -> float:
                others = [each[figure] for name, each in variants.items() if name != policy]
                return float(variants[policy][figure] / min(others))

            def surely(policy: str = policy, figure: str = figure, variants: Mapping[str, Any] = variants) -> float:
                return float(variants[policy][f"os_{figure}"][0])

            made.append(at_most(f"{load}: {figure} of {policy} : the best other", best, 1.0))
            made.append(at_least(f"{load}: {figure}, os : {policy}, least of its interval", surely, 1.0))

        def hr(variants: Mapping[str, Any] = variants) -> float:
            return float(variants["os"]["mean_ms"] / variants["highest-rate"]["mean_ms"])

        made.append(at_least(f"{load}: mean_ms, os : highest-rate", hr, 3.0))

        def by_chance(variants: Mapping[str, Any] = variants) -> float:
            return float(variants["random"]["os_mean_ms"][0])

        if part == "slots":  # turns help in any order
            made.append(at_least(f"{load}: mean_ms, os : random, least of its interval", by_chance, 1.0))
            continue
        made.append(at_most(f"{load}: mean_ms, os : random, least of its interval", by_chance, 1.0))
    return made


def warmed_up(
    rig: Rig,
    queries: Sequence[Chain],
    seconds: float,
    variants: Mapping[str, dict[str, Any] | None] = VARIANTS,
) -> float:
    """Return the hashes per second of the core under the OS alone, once the JVM is warm.

    A first attachment makes the JVM load and compile the agent, and a JVM under another scheduler compiles again.
    Otherwise the first variant would pay for that, and the others would have less load than intended.
    """
    first = _work(rig.flooded(rates_of(1.0, queries), seconds), queries)
    for name in WARM_UPS:
        with attached(rig, variants[name]):
            rig.measure(rates_of(first, queries), seconds)
    return max(first, _work(rig.flooded(rates_of(1.0, queries), seconds), queries))


def _work(done: Mapping[str, float], queries: Sequence[Chain]) -> float:
    """Convert the output rows per second of each query to hashes per second of all queries."""
    return sum(done[query.name] * sum(query.costs) for query in queries)


def _hashes(query: Chain) -> float:
    """Return the hashes per input row. Rows are dropped before they are hashed."""
    return sum(query.costs) * query.keeps / SIXTEEN


def rates_of(work: float, queries: Sequence[Chain], shares: Sequence[float] = ()) -> dict[str, float]:
    """Return each query's input rows per second, such that all queries together need `work` hashes per second.

    `shares` are the relative amounts of work of the queries; by default all have the same.
    """
    shares = shares or [1.0] * len(queries)
    each = work / sum(shares)
    return {query.name: each * share / _hashes(query) for query, share in zip(queries, shares, strict=True)}


@contextmanager
def _observed(pid: int) -> Iterator[list[Floats]]:
    """During the block, sample queues every `PERIOD` seconds: of all stages but sources, or of micro-batch queries."""
    found: list[Floats] = []
    over = threading.Event()

    def look() -> None:
        with SparkEngine(Application.find(pid=pid), knobs={}, mbeans=False, counts_period=PERIOD) as engine:
            while not over.wait(PERIOD):
                try:
                    topology = engine.topology()
                    sample = engine.sample(frozenset({"queue"}))
                except TreadleError:
                    continue
                inner = [row for row, each in enumerate(topology.instances) if not of_driver(each.query)
                         and (not topology.is_source[row] or each.operators == (WHOLE,))]  # fmt: skip
                queue = sample.columns["queue"][inner]
                # Queues of micro-batches are estimated only for rows that arrived since the query's last request.
                stages = [row for row in inner if topology.instances[row].operators != (WHOLE,)]
                if inner and not sample.estimated["queue"][stages].any() and not np.isnan(queue).any():
                    found.append(queue)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _figures(outcome: Outcome, queues: Sequence[Floats], seconds: float) -> dict[str, float]:
    ages = np.concatenate(list(outcome.ages.values()))
    spread = [float(each.std() / each.mean()) for each in queues if each.mean() > 0.0]
    return {
        "mean_ms": float(ages.mean()) * 1e3,
        "p99_ms": float(np.percentile(ages, 99)) * 1e3,
        "max_ms": float(ages.max()) * 1e3,
        "high_mean_ms": float(outcome.ages[HIGH].mean()) * 1e3,
        "queue_cv": float(np.mean(spread)) if spread else math.nan,
        "queue_variance": float(np.mean([each.var() for each in queues])) if queues else math.nan,
        "rows_inside": float(np.mean([each.sum() for each in queues])) if queues else math.nan,
        "rows_per_s": sum(outcome.rows.values()) / seconds,
        "switches_per_s": outcome.switches,
    }


def _compared(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Return the means of all repetitions, and for each goal the 95 % interval of the ratio OS : variant."""
    made: dict[str, Any] = {}
    for name, each in runs.items():
        if not each:
            continue
        made[name] = {figure: round(statistics.fmean(run[figure] for run in each), 4) for figure in each[0]}
        pairs = list(zip(runs["os"], each, strict=False))
        for figure in dict.fromkeys(GOALS.values()):
            made[name][f"os_{figure}"] = intervals.of_ratios([os[figure] / own[figure] for os, own in pairs])
    return made
