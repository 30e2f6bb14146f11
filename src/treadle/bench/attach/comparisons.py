"""`treadle bench attach`: an unchanged application in Spark's Real-Time Mode under the OS alone and under Treadle.

The part `contention` has one urgent query and four others, which together ask for more than the core can process; the
part `chain` has one query of five uneven stages, at rising rates. The application has one core for itself; broker, load
and Treadle have the others. All variants take turns on one running application, and each begins with empty queues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from treadle.bench.apart import medians
from treadle.bench.attach.rig import Progress, Rig, StalledError, attached, queued
from treadle.bench.claims import SET_UP, Claims, Deaths, at_least, in_turns
from treadle.errors import EngineError
from treadle.workloads.realtime import Chain

URGENT = {"high": 10.0}
CONTENTION: Mapping[str, dict[str, Any] | None] = {
    "os": None,
    "random": {"policy": "random", "enforce": "nice"},
    "treadle": {"priorities": URGENT},
    "nice, strict": {"priorities": URGENT, "enforce": "nice", "strict": True},
    "nice, strict, whole range": {"priorities": URGENT, "enforce": "nice:low=-20,high=19", "strict": True},
    "nice without helpers": {"priorities": URGENT, "enforce": "nice:helpers=no"},
    "cgroup": {"priorities": URGENT, "enforce": "cgroup"},
    "cgroup, strict": {"priorities": URGENT, "enforce": "cgroup", "strict": True},
    "realtime": {"priorities": URGENT, "enforce": "rt:low=0"},
    "realtime for all": {"priorities": URGENT, "enforce": "rt"},
}
"""Options of `attach`; None: not attached. Claims are about `treadle`: `treadle attach` with priorities and nothing
else, so with the default enforcer."""
CHAIN: Mapping[str, dict[str, Any] | None] = {
    "os": None,
    "treadle": {},
    "queue-size, nice": {"policy": "queue-size", "enforce": "nice"},
    "congestion-aware, nice": {"policy": "congestion-aware", "enforce": "nice"},
    "congestion-aware without helpers, nice": {"policy": "congestion-aware", "enforce": "nice:helpers=no"},
    "downstream-first, nice+slice": {
        "policy": "downstream-first",
        "enforce": "nice:low=-10,high=0+slice:low=0.01,high=0.01",
    },
    "downstream-first, realtime": {"policy": "downstream-first", "enforce": "rt"},
    "slice": {"policy": "downstream-first", "enforce": "slice:low=0.02,high=0.02"},
    "highest-rate, nice": {"policy": "highest-rate", "enforce": "nice"},
    "fcfs, nice": {"policy": "fcfs", "enforce": "nice"},
}
COSTS = (20, 60, 30, 100, 40)
STEP, STEPS = 1.05, 16
"""Rates rise by this factor, at most this many times, until the OS alone does not keep up."""
BELOW, RATES = 0.95, 8
"""The first rate at which all variants are measured, as a share of the rate that the OS alone does not sustain; and the
maximum number of rates."""
COMPARED, COMPARISONS = ("os", "treadle"), 3
"""The claims compare these two variants, so both are measured this many times at each rate."""
AS_MUCH = 0.9
"""The aim: under contention, `treadle` has at least this share of the rows per second of the OS alone."""
BEHIND = 0.5
"""A rate counts as sustained if the rows that wait at the end are at most this many seconds of input."""


def run(
    parts: Sequence[str] = ("contention", "chain"),
    *,
    repetitions: int = 1,
    seconds: float = 11.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return the figures of each part, by variant."""
    tell = progress or (lambda *_: None)
    from treadle.bench.attach import policies, rules  # import this module

    goals = {
        "policies": policies.run,
        "uneven": policies.run_uneven,
        "batches": policies.run_batches,
        "slots": policies.run_slots,
    }
    measures = {"contention": contention, "chain": chain, "rules": rules.run, **goals}
    found: dict[str, Any] = {}
    deaths = Deaths()
    for number, part in enumerate(parts):

        def told(what: str, done: float, number: int = number) -> None:
            tell(what, (number + done) / len(parts))

        died = Deaths()
        with died.noted(SET_UP):
            found[part] = measures[part](repetitions, seconds, told, died)
        deaths |= {f"{part}: {name}": why for name, why in died.items()}
    made = claims(found, parts)
    for part in goals:
        if part in parts:
            made += policies.claims(found.get(part, {}), part)
    if "rules" in parts:
        made += rules.claims(found.get("rules", {}))
        found["rules"] = rules.summary(found.get("rules", {}))
    return {**found, **deaths.figures(), "claims": made}


def contention(repetitions: int, seconds: float, tell: Progress, deaths: Deaths) -> dict[str, Any]:
    """Measure one urgent query that needs 65 % of the core, and four others that each ask for 30 %."""
    queries = [Chain(name, (60, 60, 60)) for name in ("high", *(f"low{number}" for number in range(4)))]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENTION}
    with Rig(queries) as rig:
        tell("contention: warming up", 0.0)
        capacity = rig.capacity(seconds)
        rates = {query.name: capacity * (0.65 if query.name == "high" else 0.3) for query in queries}

        def measure(name: str, number: int) -> None:
            tell(f"contention: {name}", number / (repetitions * len(CONTENTION)))
            with attached(rig, CONTENTION[name]):
                outcome = rig.measure(rates, seconds)
            ages = outcome.ages["high"]
            runs[name].append(
                {
                    "high_mean_ms": float(ages.mean()) * 1e3,
                    "high_p99_ms": float(np.percentile(ages, 99)) * 1e3,
                    "high_rows_per_s": outcome.rows["high"] / seconds,
                    "rows_per_s": sum(outcome.rows.values()) / seconds,
                    "switches_per_s": outcome.switches,
                }
            )

        in_turns(list(CONTENTION), repetitions, measure, deaths, stop=True)
    return {name: medians(each) for name, each in runs.items() if each}


def chain(repetitions: int, seconds: float, tell: Progress, deaths: Deaths) -> dict[str, Any]:
    """Measure one query at rising rates; latencies are those at the first rate that the OS alone can't sustain."""
    query = Chain("chain", COSTS)
    served = dict(CHAIN)
    refused: dict[str, str] = {}
    by_rate: dict[tuple[str, float], dict[str, float]] = {}
    rates: list[float] = []
    unfinished: dict[str, Any] = {}
    with Rig([query]) as rig:
        tell("chain: warming up", 0.0)
        start = BELOW * _saturation(rig, query.name, rig.capacity(seconds), seconds)
        while len(rates) < RATES and worth_more(by_rate, rates):
            rate = round(start * STEP ** len(rates), -1)
            runs: dict[str, list[dict[str, float]]] = {}
            order = turns(list(served)) * repetitions
            for number, name in enumerate(order):
                if name in refused:
                    continue
                tell(f"chain: {name} at {rate:.0f} rows/s", (len(rates) + number / len(order)) / RATES)
                with deaths.noted(f"{name} at {rate:.0f} rows/s"):
                    try:
                        runs.setdefault(name, []).append(_tried(rig, query.name, served[name], rate, seconds))
                    except EngineError as error:  # the policy's metrics are missing here
                        if name in COMPARED or isinstance(error, StalledError):
                            raise
                        refused[name] = str(error)
                if deaths:
                    break  # the application may be stalled, which would affect all later measurements
            found = {name: medians(each) for name, each in runs.items() if each}
            if deaths:
                unfinished = {"unfinished": {f"{rate:.0f}": found}}
                break
            by_rate.update({(name, rate): figures for name, figures in found.items()})
            served = {name: options for name, options in served.items() if name not in refused}
            rates.append(rate)
    return {"refused": refused, **(at_saturation(by_rate, rates, list(served)) if rates else {}), **unfinished}


def turns(names: Sequence[str]) -> list[str]:
    """Return the order of runs: each variant once, but those in `COMPARED` `COMPARISONS` times.

    Near saturation a single run says little.
    """
    others = [name for name in names if name not in COMPARED]
    return [name for part in range(COMPARISONS) for name in (*COMPARED, *others[part::COMPARISONS])]


def _tried(rig: Rig, query: str, options: dict[str, Any] | None, rate: float, seconds: float) -> dict[str, float]:
    with attached(rig, options):
        outcome = rig.measure({query: rate}, seconds)
    return {
        "p50_ms": float(np.percentile(outcome.ages[query], 50)) * 1e3,
        "p99_ms": float(np.percentile(outcome.ages[query], 99)) * 1e3,
        "rows_per_s": outcome.rows[query] / seconds,
        "behind_s": outcome.left[query] / rate,
        **queued(outcome.queued[query]),
        "switches_per_s": outcome.switches,
    }


def _saturation(rig: Rig, query: str, capacity: float, seconds: float) -> float:
    """Raise the rate from 85 % of `capacity` until the OS alone does not sustain it, and return it.

    A JVM goes on compiling for minutes, so this rate is only a start for the measurements and is not reported.
    """
    rate = 0.85 * capacity
    for _ in range(STEPS):
        if rig.measure({query: rate}, seconds).left[query] / rate > BEHIND:
            break
        rate *= STEP
    return rate


def worth_more(by_rate: Mapping[tuple[str, float], Mapping[str, float]], rates: Sequence[float]) -> bool:
    """Return whether a higher rate is worth measuring: one of `COMPARED` has kept up with all rates so far."""
    return any(all(by_rate[name, rate]["behind_s"] <= BEHIND for rate in rates) for name in COMPARED)


def at_saturation(
    by_rate: Mapping[tuple[str, float], Mapping[str, float]], rates: Sequence[float], names: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of all variants at the first rate that the OS alone does not sustain, or else at the last."""
    saturated = next((rate for rate in rates if by_rate["os", rate]["behind_s"] > BEHIND), rates[-1])
    figures: dict[str, Any] = {"saturation_rows_per_s": saturated}
    for name in names:
        kept = [rate for rate in rates if by_rate[name, rate]["behind_s"] <= BEHIND]
        figures[name] = {
            "sustained_rows_per_s": max(kept, default=0.0),
            **by_rate[name, saturated],
            "by_rate": {f"{rate:.0f}": dict(by_rate[name, rate]) for rate in rates},
        }
    return figures


def claims(found: Mapping[str, Any], parts: Sequence[str]) -> Claims:
    """Return the claims about `treadle`, the variant with the defaults, for the parts that were measured."""

    def ratio(part: str, figure: str, over: str, under: str) -> Callable[[], float]:
        return lambda: found[part][over][figure] / max(found[part][under][figure], 1.0)

    return [
        at_least(f"{part}: {figure}, {over} : {under}", ratio(part, figure, over, under), aim)
        for part, figure, over, under, aim in (
            ("contention", "high_mean_ms", "os", "treadle", 20.0),
            ("contention", "high_p99_ms", "os", "treadle", 20.0),
            ("contention", "rows_per_s", "treadle", "os", AS_MUCH),
            ("chain", "p50_ms", "os", "treadle", 3.0),
            ("chain", "p99_ms", "os", "treadle", 1.0),
            ("chain", "sustained_rows_per_s", "treadle", "os", 1.0),
        )
        if part in parts
    ]
