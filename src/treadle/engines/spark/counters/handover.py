"""Counters of instances, summed up over members (threads, consumers) that start, end and change their instance.

A pooled thread serves one instance now and another one later; what it has counted before does not belong to the new
one. So an instance's counter is the sum of what its members have counted for it. It never decreases.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from treadle.engines.spark.threads.idle_queues import realigned
from treadle.model import Floats, Ints


class Counters:
    """One counter per instance, NaN until a member has counted."""

    def __init__(self) -> None:
        self._totals = np.empty(0)
        self._members: tuple[Hashable, ...] = ()
        self._rows = np.empty(0, dtype=np.int64)
        self._last = np.empty(0)

    def realign(self, source: Ints) -> None:
        """Switch to new instances: `source` has the previous index of each, -1 for a new one."""
        known = source >= 0
        totals = realigned(self._totals, source)
        place = np.full(len(self._totals) + 1, -1, dtype=np.int64)
        place[source[known]] = np.flatnonzero(known)
        self._totals, self._rows = totals, place[self._rows]

    def add(self, members: tuple[Hashable, ...], counts: Floats, rows: Ints) -> Floats:
        """Update with the current count of each member, `rows` being the members' instances; return all counters."""
        if members is not self._members or rows is not self._rows:
            before = {
                (member, row): last
                for member, row, last in zip(self._members, self._rows.tolist(), self._last.tolist(), strict=True)
            }
            keys = zip(members, rows.tolist(), strict=True)
            self._last = np.array([before.get(key, np.nan) for key in keys], dtype=np.float64)
            self._members, self._rows = members, rows
        grown = counts - self._last
        grown[~(grown > 0.0)] = 0.0  # new, restarted or unknown
        totals = np.where(np.isnan(self._totals), 0.0, self._totals)
        totals += np.bincount(rows, weights=grown, minlength=len(totals))
        worked = np.zeros(len(totals), dtype=np.bool_)
        worked[rows[~np.isnan(counts)]] = True
        self._totals = np.where(worked | ~np.isnan(self._totals), totals, np.nan)
        self._last = np.where(np.isnan(counts), self._last, counts)
        return self._totals.copy()
