"""What waits outside of the engine before a source, in rows and since when, from the offsets that its consumer knows.

A consumer learns of new records with its answers, and asks for no more while it has some. So between two answers
records are held to come as fast as before, and once the next answer is there, to have come evenly in between.
"""

from __future__ import annotations

import math
from collections import deque

MEMORY, SHORT_MEMORY = 10.0, 2.0
"""Seconds over which it is seen how fast records come; less where it is known when each end was asked for."""
LONGEST = 30.0
"""Seconds for which a consumer that hears nothing is sent as many records as before."""
MOST = 256
"""Answers that are kept."""
SHORT = 0.1
"""Seconds between two notes of the same end, while no new record arrives."""


class SourceLag:
    """One partition of a source. `waiting` and `age` are those of the last update."""

    def __init__(self) -> None:
        self.waiting = 0.0
        """Records in the partition that the task has not read yet."""
        self.age = 0.0
        """Seconds since the next record to be read was written to Kafka."""
        self._answers: deque[tuple[float, float]] = deque(maxlen=MOST)
        """When which end was first heard of: the last one that is not beyond what was taken, and all after it."""
        self._ends: deque[tuple[float, float]] = deque(maxlen=MOST)

    def update(self, now: float, offset: float, end: float, asked: float = math.nan) -> None:
        """The offset that is read next, and the end as the consumer knows it.

        `asked` is when it was told of this end; without it, it asks again whenever it has read all.
        """
        answers, ends = self._answers, self._ends
        heard = now if math.isnan(asked) else asked
        if not answers or end > answers[-1][1] or (asked > answers[-1][0] and answers[-1][1] > offset):
            answers.append((heard, end))
        if not ends or end > ends[-1][1] or asked > ends[-1][0] + SHORT:
            ends.append((heard, end))
        while len(answers) > 2 and answers[1][1] <= offset:
            answers.popleft()
        while len(ends) > 2 and ends[1][0] < now - (MEMORY if math.isnan(asked) else SHORT_MEMORY):
            ends.popleft()
        if offset >= end and math.isnan(asked):  # it has all that it has heard of, so it asks all the time
            self.waiting = self.age = 0.0
            return
        heard = answers[-1][0] if math.isnan(asked) else asked
        unheard = self._rate * min(now - heard, LONGEST)
        self.waiting = max(0.0, end + unheard - offset)
        if offset < end:
            self.age = max(0.0, now - self._came(offset))
        else:  # only what it has not heard of waits
            self.age = max(0.0, now - heard) if self.waiting >= 1.0 else 0.0

    @property
    def _rate(self) -> float:
        (first, least), (last, most) = self._ends[0], self._ends[-1]
        return (most - least) / (last - first) if last > first else 0.0

    def _came(self, offset: float) -> float:
        """When a record came that was heard of."""
        time, end = self._answers[0]
        if offset < end:
            return time - (end - offset) / self._rate if self._rate > 0.0 else time
        for later, further in self._answers:
            if further > offset:
                return time + (later - time) * (offset - end) / (further - end)
            time, end = later, further
        return time
