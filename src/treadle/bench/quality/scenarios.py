"""The scenarios of `treadle bench quality` by number: the pipeline, the rows, and how the load changes.

1 to 3 are those of Stream-Economics section 7, 4 and 5 are ours. A load is a share of the measured capacity of the
machine, or of one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from treadle.pipelines.api.pipeline import Pipeline
from treadle.workloads import knn, payments, taxi

ROW = 200e-6
"""CPU seconds that a row takes in each heavy task."""
HEAVY_ROW = 1e-3
"""The same for scenario 1, where the load generator must use little CPU, since it shares a core with a worker."""


class Phase(NamedTuple):
    """A phase of a scenario: for some seconds each application gets a constant load."""

    seconds: float
    load: tuple[float, ...]
    workers: int = 0
    """Number of workers of a cluster, each with one core; 0: no cluster, one session on the whole machine."""

    @property
    def pressure(self) -> float:
        """The sum of all loads, as a share of the capacity of the machine or of all workers."""
        return sum(self.load) / max(self.workers, 1)


class Made(NamedTuple):
    """A pipeline, and a function for more figures, which gets the number of rows sent to each source."""

    pipeline: Pipeline
    figures: Callable[[Mapping[str, int]], dict[str, Any]] | None = None


@dataclass(frozen=True)
class Scenario:
    """A pipeline and its load. `make` gets the seconds that a hash takes, and the prefix of its topics.

    Each of `applications` has sources, with the function that makes their rows; the first phase is for warming up.
    """

    what: str
    make: Callable[[float, str], Made]
    applications: Sequence[Mapping[str, str]]
    phases: Sequence[Phase]
    instances: Mapping[str, int] = field(default_factory=dict)
    """By sink: the number of workers on which it may run at once, if not one."""
    leaves: str = ""
    """The sink that Alg. 2 moves from its worker when the CPU is too little for all minima."""

    @property
    def rows(self) -> dict[str, str]:
        """Source -> the function that makes its rows."""
        return {source: maker for each in self.applications for source, maker in each.items()}


def _taxi_and_knn(unit: float, prefix: str) -> Made:
    p = Pipeline("taxi-and-knn")
    hashes = max(1, round(ROW / unit))
    taxi.add(p, (hashes, hashes), minimum=(0.4, 0.6), priority=(2.0, 3.0), prefix=prefix)
    knn.add(p, minimum=0.2, priority=1.0, prefix=prefix)
    return Made(p)


def _taxi(minimum: tuple[float, float], row: float = ROW) -> Callable[[float, str], Made]:
    def make(unit: float, prefix: str) -> Made:
        hashes = max(1, round(row / unit))
        return Made(taxi.pipeline((hashes, hashes), minimum=minimum, prefix=prefix))

    return make


def _knn(_: float, prefix: str) -> Made:
    return Made(knn.pipeline(minimum=0.2, priority=1.0, prefix=prefix))


def _payments(unit: float, prefix: str) -> Made:
    p, found = payments.pipeline(max(1, round(ROW / unit)), prefix=prefix)
    return Made(p, lambda sent: found.figures(sent[payments.PAYMENTS]))


_TAXI = {taxi.RIDES: "treadle.workloads.taxi:ride", taxi.FARES: "treadle.workloads.taxi:fare"}
_KNN = {knn.POINTS: "treadle.workloads.knn:point"}
_PAYMENTS = {payments.PAYMENTS: "treadle.workloads.payments:payment"}

SCENARIOS: dict[str, Scenario] = {
    "1": Scenario(
        "Taxi Drives, drivers and cells alike: a second worker is idle until the first can't pay for both minima",
        _taxi((0.4, 0.6), HEAVY_ROW),
        (_TAXI,),
        # This load needs about 2.3 cores, and the minima half of that: more than one worker has, and less than both
        # have, of which the second shares its core with the load.
        (Phase(40, (0.5,), 1), Phase(20, (0.5,), 2), Phase(90, (2.8,), 2)),
        instances={"cells": 2},
        leaves="cells",
    ),
    "2": Scenario(
        "Taxi Drives and KNN, drivers before cells before labels",
        _taxi_and_knn,
        (_TAXI, _KNN),
        (Phase(20, (0.5, 0.0)), Phase(20, (0.5, 0.3)), Phase(20, (0.5, 0.6)), Phase(40, (0.9, 0.6))),
    ),
    "3": Scenario(
        "KNN on a topic of two partitions, whose rate changes",
        _knn,
        (_KNN,),
        (Phase(20, (0.5,)), Phase(30, (1.5,)), Phase(20, (0.75,)), Phase(40, (1.5,)), Phase(20, (0.5,))),
    ),
    "4": Scenario(
        "payments are shed by their use: the search for fraud stays exact",
        _payments,
        (_PAYMENTS,),
        (Phase(20, (0.5,)), Phase(40, (1.5,)), Phase(20, (0.5,))),
    ),
    "5": Scenario(
        "Taxi Drives, drivers and cells alike, on one worker with too much to do, and then on two",
        _taxi((0.4, 0.4)),
        (_TAXI,),
        (Phase(30, (0.5,), 1), Phase(40, (1.4,), 1), Phase(120, (1.4,), 2)),
    ),
}
