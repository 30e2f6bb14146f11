"""What an adaptive policy does when its objectives change, and after a restart, in virtual time (AMoS section 3.2).

In the shipped scenario `changing-objectives` the objective changes from latency to memory in the middle of the run. The
best candidate for memory is the one with the shortest queues when it runs alone. For the restart the first half of the
scenario is run twice: without a learned file, and with the one that another run has left.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from treadle.bench.claims import Claims, at_least, at_most
from treadle.engines.simulator import scenario
from treadle.engines.simulator.run import Outcome, simulate
from treadle.engines.simulator.scenario import Scenario

SCENARIO = "changing-objectives"
CANDIDATES = ("rr", "fifo", "mtiq", "chain")
DELAY = 2.0
ADAPTIVE = f"adaptive:objective=min latency,candidates={'+'.join(CANDIDATES)},delay={DELAY:g}"
"""The defaults, written out: the claims are about them."""
SEEDS = 5
MINUTE = 60.0
WITHIN = 2 * DELAY
"""The aim for the time from the change to the first choice of the best candidate, in seconds: two intervals."""
MOSTLY = 0.9
"""The aim for the share of all later choices that are the best candidate."""

SLIVER = 1e-6
"""Sums of periods have rounding errors; a round at the time of the change is after it."""

Told = Callable[[str, float], None]


def run(seeds: int = SEEDS, tell: Told | None = None) -> dict[str, Any]:
    """Return the figures of all seeds."""
    loaded = scenario.load(SCENARIO)
    best = _best_for_memory(loaded)
    found: dict[str, Any] = {"best_for_memory": best, "follows_after": [], "best_after": [], "warm_ups_after": []}
    found |= {"first_minute_without": [], "first_minute_with": []}
    for number in range(seeds):
        if tell is not None:
            tell(f"seed {number + 1} of {seeds}", number / seeds)
        seed = loaded.seed + number
        outcome = simulate(loaded, ADAPTIVE, seed=seed)
        for key, value in _after_the_change(outcome, loaded.change[0].at, best).items():
            found[key].append(value)
        without, with_ = _first_minutes(loaded, seed)
        found["first_minute_without"].append(without)
        found["first_minute_with"].append(with_)
    return found


def claims(found: dict[str, Any]) -> Claims:
    """Return the claims, which are about the worst seed."""

    def gain() -> float:
        pairs = zip(found["first_minute_without"], found["first_minute_with"], strict=True)
        return float(min(without / with_ for without, with_ in pairs))

    return [
        at_most("switch: seconds until the best candidate follows", lambda: max(found["follows_after"]), WITHIN),
        at_least("switch: later choices of the best candidate", lambda: min(found["best_after"]), MOSTLY),
        at_most("switch: candidates with a second warm-up", lambda: max(found["warm_ups_after"]), 0),
        at_least("restart: latency of the first minute, without : with the learned file", gain, 1.0),
    ]


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures with medians, as they are shown."""
    lists = {key: value for key, value in found.items() if isinstance(value, list)}
    return {**found, "median": {key: round(median(values), 4) for key, values in lists.items()}}


def _best_for_memory(loaded: Scenario) -> str:
    runs: Sequence[Outcome] = [simulate(loaded, name, seconds=MINUTE) for name in CANDIDATES]
    return min(runs, key=lambda outcome: float(outcome.summary()["mean_queue"])).label


def _after_the_change(outcome: Outcome, at: float, best: str) -> dict[str, float]:
    later = [choice for choice in outcome.choices if choice.time >= at - SLIVER]
    first = next((choice.time - at for choice in later if choice.chosen == best), float("inf"))
    return {
        "follows_after": max(0.0, round(first, 6)),
        "best_after": sum(choice.chosen == best for choice in later) / len(later),
        "warm_ups_after": sum(choice.reason.startswith("warm-up") for choice in later),
    }


def _first_minutes(loaded: Scenario, seed: int) -> tuple[float, float]:
    """Return the mean latency of the first minute without a learned file, and with one of a run with another seed."""
    minute = loaded.model_copy(update={"change": (), "warm_up": 0.0})
    with tempfile.TemporaryDirectory(prefix="treadle-") as folder:
        learned = f"{ADAPTIVE},learned=({Path(folder) / 'learned.json'})"
        simulate(minute, learned, seconds=loaded.change[0].at, seed=seed + 1000)
        latencies = [
            float(simulate(minute, spec, seconds=MINUTE, seed=seed).summary()["mean_latency"])
            for spec in (ADAPTIVE, learned)
        ]
    return latencies[0], latencies[1]
