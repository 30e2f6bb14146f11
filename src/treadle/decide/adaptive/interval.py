"""One stay of an algorithm in charge: what it took over, and the totals while it ran. It judges nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from treadle.decide.adaptive.score import Synopsis


@dataclass(frozen=True, slots=True)
class Interval:
    """What is remembered of a stay: by total, the last value before it and the mean of those within it."""

    candidate: str
    start: Mapping[str, float]
    level: Mapping[str, float]


class Gauge:
    """Sums up the totals of a stay in progress. Values that are not finite are unknown, and left out.

    All totals are followed, not only those of the objectives, so that an objective named later finds its history.
    """

    def __init__(self, since: float, settled: float, start: Mapping[str, float]) -> None:
        self.since = since
        self.settled = settled
        """From when on the totals count; before that they still show the predecessor's work."""
        self.start = {name: value for name, value in start.items() if math.isfinite(value)}
        self.seen: dict[str, Synopsis] = {}

    def add(self, time: float, totals: Mapping[str, float]) -> None:
        if time < self.settled:
            return
        for name, value in totals.items():
            if math.isfinite(value):
                known, new = self.seen.get(name), Synopsis.of(value)
                self.seen[name] = new if known is None else known.merge(new)
