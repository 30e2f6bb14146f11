"""Throughput and backlog of a whole application: rows that it finishes per second, and rows that wait in it.

Kafka's consumers count the rows that have arrived, and its producers those that have left. The difference waits, in
Kafka or between two stages, and is known also during a batch. All figures are in input rows: rows that have left are
divided by the selectivity.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from treadle.engines.spark.kafka.consumers import Consumer, Key, grown

MEMORY = 10.0
"""Seconds over which the arrival rate is measured."""
LONGEST = 30.0
"""Seconds for which rows are assumed to arrive as before while a consumer gets no answer; after that, its query counts
as ended."""
QUIET = 3.0
"""Seconds without new or sent records, while consumers poll, after which the application counts as empty."""
FADES = 120.0
"""Seconds in which the known backlog decays by a factor of e if the selectivity is not 1, since errors add up."""


class Flow:
    """Throughput and backlog of one application, computed from the record counts of all its Kafka clients."""

    def __init__(self) -> None:
        self.rate = math.nan
        """Rows that the application finished per second, between the last two updates."""
        self.waiting = math.nan
        """Rows that wait in Kafka or are under way within the application."""
        self._sources: dict[Key, _Source] = {}
        self._sent: dict[Key, float] = {}
        self._known = 0.0
        """The backlog without records that consumers have not heard of yet."""
        self._time = math.nan
        self._moved = -math.inf

    def update(
        self, now: float, found: Mapping[Key, Consumer], sent: Mapping[Key, float], selectivity: float = math.nan
    ) -> None:
        """Update with new counts: `sent` are the records of producers, `selectivity` the records sent per record taken.

        While either is unknown, a record counts as finished when a consumer has taken it.
        """
        counted = {key: each for key, each in found.items() if not math.isnan(each.consumed)}
        same, seconds = counted.keys() == self._sources.keys(), now - self._time
        self._sources = {key: self._sources.get(key) or _Source() for key in counted}
        sources = self._sources.values()
        steps = [source.update(now, counted[key]) for key, source in self._sources.items()]
        came, taken = sum(end for end, _ in steps), sum(count for _, count in steps)
        left = grown(sent, self._sent)
        lag = sum(source.lag for source in sources)
        if came or left:
            self._moved = now
        asked = all(source.heard > self._moved or now - source.heard >= LONGEST for source in sources)
        is_empty = lag == 0.0 and asked and now - self._moved >= QUIET
        sees_ends = bool(sent) and selectivity > 0.0
        if same and sees_ends and not is_empty:
            kept = 1.0 if selectivity == 1.0 else math.exp(-seconds / FADES)
            self._known = max(kept * self._known + came - left / selectivity, lag)
        else:
            self._known = lag  # the rows inside are unknown, or there are none
        done = left / selectivity if sees_ends else taken
        self.rate = done / seconds if counted and same else math.nan
        self.waiting = self._known + sum(source.unheard(now) for source in sources) if counted else math.nan
        self._time = now
        self._sent.update(sent)


class _Source:
    """A consumer, and the number of records that were available to it since it was created (`end`).

    The number is taken records plus lag. But a consumer counts the records of an answer as taken only when all of them
    are processed, while its lag falls with each record. So `end` is the highest sum so far.
    """

    def __init__(self) -> None:
        self.end = self.lag = 0.0
        self.heard = -math.inf
        """When the consumer last got an answer: it does not ask while it has records left or its task is stuck."""
        self._taken = 0.0
        self._received = -1
        self._ends: deque[tuple[float, float]] = deque()

    def update(self, now: float, consumer: Consumer) -> tuple[float, float]:
        """Return the growth of `end` and of taken records since the last update."""
        before = self.end, self._taken
        lag = 0.0 if math.isnan(consumer.lag) else consumer.lag
        self._taken, self.end = max(self._taken, consumer.consumed), max(self.end, consumer.consumed + lag)
        if consumer.traffic.received > self._received or self.end > before[0]:
            self._received, self.heard = consumer.traffic.received, now
            self._ends.append((now, self.end))
            while self._ends[0][0] < now - MEMORY and len(self._ends) > 2:
                self._ends.popleft()
        self.lag = lag if now - self.heard < LONGEST else 0.0
        return self.end - before[0], self._taken - before[1]

    def unheard(self, now: float) -> float:
        """Estimate the records that have arrived since the last answer."""
        (first, least), (last, most) = self._ends[0], self._ends[-1]
        silent = now - last
        return (most - least) / (last - first) * silent if last > first and silent < LONGEST else 0.0
