"""Lag and consumed records of the instances that read Kafka, from the MBeans of their consumers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from treadle.engines.spark.counters.handover import Counters
from treadle.engines.spark.kafka.consumers import Consumer, Key
from treadle.engines.spark.threads.places import Place
from treadle.model import Floats, Ints


class KafkaColumns:
    """Lag and consumed records by instance; NaN where no consumer is known."""

    def __init__(self) -> None:
        self._taken = Counters()
        self._last: tuple[object, object, Floats, Floats] | None = None

    def lay_out(self, source: Ints) -> None:
        """Switch to new instances, as `Counters.realign`."""
        self._taken.realign(source)
        self._last = None

    def read(
        self, matches: Mapping[Key, Place], found: Mapping[Key, Consumer], places: Sequence[Place | None]
    ) -> tuple[Floats, Floats]:
        """Return, by instance, the lag, and the records consumed since it was first seen; computed after a change."""
        if self._last is None or self._last[:2] != (matches, found):
            lag = np.full(len(places), np.nan)
            row_of: dict[Place | None, int] = {place: row for row, place in enumerate(places)}
            known = [(key, row_of[place]) for key, place in matches.items() if key in found and place in row_of]
            for key, row in known:
                lag[row] = np.nansum([lag[row], found[key].lag]) if not math.isnan(found[key].lag) else lag[row]
            keys, rows = tuple(key for key, _ in known), np.array([row for _, row in known], dtype=np.int64)
            taken = self._taken.add(keys, np.array([found[key].consumed for key in keys]), rows)
            self._last = (matches, found, lag, taken)
        return self._last[2], self._last[3]
