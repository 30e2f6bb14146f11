"""One interval of an algorithm in charge: the totals at its start and while it ran."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from treadle.decide.adaptive.score import Synopsis


@dataclass(frozen=True, slots=True)
class Interval:
    """A finished interval: for each total, the last value before it and the mean within it."""

    candidate: str
    start: Mapping[str, float]
    level: Mapping[str, float]


class Gauge:
    """Accumulates the totals of the interval in progress; values that are not finite are unknown and left out.

    All totals are accumulated, not only those of the objectives, so that an objective that is added later has a
    history.
    """

    def __init__(self, since: float, settled: float, start: Mapping[str, float]) -> None:
        self.since = since
        self.settled = settled
        """Time from which totals count; before it they still show the predecessor's work."""
        self.start = {name: value for name, value in start.items() if math.isfinite(value)}
        self.seen: dict[str, Synopsis] = {}

    def add(self, time: float, totals: Mapping[str, float]) -> None:
        if time < self.settled:
            return
        for name, value in totals.items():
            if math.isfinite(value):
                known, new = self.seen.get(name), Synopsis.of(value)
                self.seen[name] = new if known is None else known.merge(new)
