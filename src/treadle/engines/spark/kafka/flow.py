"""What goes through an application as a whole: rows that it is done with in a second, and rows that wait in it.

Kafka's consumers tell what has come and its producers what has left, whosever they are; the difference waits, in Kafka
or between two stages, of which nobody else tells in the middle of a batch. Rows are those that come: what leaves is
divided by the rows that are put out for each.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from treadle.engines.spark.kafka.consumers import Consumer, Key, grown

MEMORY = 10.0
"""Seconds over which it is seen how fast rows come."""
LONGEST = 30.0
"""Seconds for which a consumer that hears nothing is sent as many rows as before: after that its query has ended."""
QUIET = 3.0
"""Seconds in which consumers ask and nothing moves, after which nothing is inside."""
FADES = 120.0
"""Seconds in which what is inside counts for e times less, where not as many rows leave as come: errors add up."""


class Flow:
    """Fed with what all consumers and producers count, at times."""

    def __init__(self) -> None:
        self.rate = math.nan
        """Rows that the application was done with in a second, between the last two looks."""
        self.waiting = math.nan
        """Rows that wait in Kafka or are under way within the application."""
        self._sources: dict[Key, _Source] = {}
        self._sent: dict[Key, float] = {}
        self._known = 0.0
        """What waits, as far as consumers have heard of it."""
        self._time = math.nan
        self._moved = -math.inf

    def update(
        self, now: float, found: Mapping[Key, Consumer], sent: Mapping[Key, float], selectivity: float = math.nan
    ) -> None:
        """`sent` are the records that producers have sent; `selectivity` those that are put out for each taken in.

        While one of these is not known, what consumers have taken is done with.
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
            self._known = lag  # what is inside is not known, or it is nothing
        done = left / selectivity if sees_ends else taken
        self.rate = done / seconds if counted and same else math.nan
        self.waiting = self._known + sum(source.unheard(now) for source in sources) if counted else math.nan
        self._time = now
        self._sent.update(sent)


class _Source:
    """A consumer: how many records it could have taken since it was made.

    That is what it has taken and its lag, but it counts the records of an answer as taken only when it is through with
    them, while its lag falls with each. So the most that was ever seen holds.
    """

    def __init__(self) -> None:
        self.end = self.lag = 0.0
        self.heard = -math.inf
        """When it last got an answer: it asks for no more while it has some, nor while its task is stuck."""
        self._taken = 0.0
        self._received = -1
        self._ends: deque[tuple[float, float]] = deque()

    def update(self, now: float, consumer: Consumer) -> tuple[float, float]:
        """By how much the end and what was taken have grown."""
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
        """Records that have come since, if as many come as before."""
        (first, least), (last, most) = self._ends[0], self._ends[-1]
        silent = now - last
        return (most - least) / (last - first) * silent if last > first and silent < LONGEST else 0.0
