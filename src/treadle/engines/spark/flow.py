"""What goes through an application as a whole: rows that it is done with in a second, and rows that wait in it.

Kafka's consumers tell what has come and its producers what has left, whosever they are; the difference waits, in Kafka
or between two stages, of which nobody else tells in the middle of a batch. Rows are those that come: what leaves is
divided by the rows that are put out for each.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from treadle.engines.spark.consumers import Consumer, Key

MEMORY = 10.0
"""Seconds over which it is seen how fast rows come."""
LONGEST = 30.0
"""Seconds for which a consumer that asks for no more is believed to be sent as many rows as before: then its query may
have ended."""
QUIET = 3.0
"""Seconds in which nothing moves, after which nothing is inside."""


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
        same = counted.keys() == self._sources.keys()
        self._sources = {key: self._sources.get(key) or _Source() for key in counted}
        grown = [source.update(now, counted[key]) for key, source in self._sources.items()]
        came, taken = sum(end for end, _ in grown), sum(count for _, count in grown)
        lag = sum(source.lag for source in self._sources.values())
        left = sum(max(0.0, count - self._sent.get(key, 0.0)) for key, count in sent.items())
        if came or left:
            self._moved = now
        sees_ends = bool(sent) and selectivity > 0.0
        if same and sees_ends and (lag > 0.0 or now - self._moved < QUIET):
            self._known = max(self._known + came - left / selectivity, lag)
        else:
            self._known = lag  # what is inside is not known, or it is nothing
        done = left / selectivity if sees_ends else taken
        unheard = sum(source.unheard(now) for source in self._sources.values())
        self.rate = done / (now - self._time) if counted and same else math.nan
        self.waiting = self._known + unheard if counted else math.nan
        self._time = now
        self._sent.update(sent)


class _Source:
    """A consumer: how many records it could have taken since it was made.

    That is what it has taken and its lag, but it counts the records of an answer as taken only when it is through with
    them, while its lag falls with each. So the most that was ever seen holds.
    """

    def __init__(self) -> None:
        self.end = self.lag = 0.0
        self._taken = self._polled = 0.0
        self._ends: deque[tuple[float, float]] = deque()

    def update(self, now: float, consumer: Consumer) -> tuple[float, float]:
        """By how much the end and what was taken have grown."""
        before = self.end, self._taken
        self._taken = max(self._taken, consumer.consumed)
        self.lag = 0.0 if math.isnan(consumer.lag) else consumer.lag
        self._polled = 0.0 if math.isnan(consumer.polled) else consumer.polled
        end = max(self.end, consumer.consumed + self.lag)
        if end > self.end or not self._ends:
            self.end = end
            self._ends.append((now, end))
            while len(self._ends) > 2 and self._ends[1][0] < now - MEMORY:
                self._ends.popleft()
        return self.end - before[0], self._taken - before[1]

    def unheard(self, now: float) -> float:
        """Records that have come since it last heard how many there are.

        It asks for no more while it has some, nor while its task can't get rid of what it has.
        """
        (first, least), (last, most) = self._ends[0], self._ends[-1]
        age = now - last if self.lag > 0.0 else self._polled
        return (most - least) / (last - first) * age if last > first and age < LONGEST else 0.0
