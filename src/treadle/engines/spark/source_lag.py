"""What waits outside of the engine before a source, in rows and since when, from the offsets that its consumer knows.

A consumer learns of new records with its answers, and asks for no more while it has some. So between two answers
records are held to come as fast as before, and once the next answer is there, to have come evenly in between.
"""

from __future__ import annotations

from collections import deque

MEMORY = 10.0
"""Seconds over which it is seen how fast records come."""
LONGEST = 30.0
"""Seconds for which a consumer that hears nothing is sent as many records as before."""
MOST = 256
"""Answers that are kept."""


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

    def update(self, now: float, offset: float, end: float) -> None:
        """The offset that is read next, and the end as the consumer knows it."""
        answers, ends = self._answers, self._ends
        if not answers or end > answers[-1][1]:
            answers.append((now, end))
            ends.append((now, end))
        while len(answers) > 2 and answers[1][1] <= offset:
            answers.popleft()
        while len(ends) > 2 and ends[1][0] < now - MEMORY:
            ends.popleft()
        if offset >= end:  # it has all that it has heard of, so it asks all the time
            self.waiting = self.age = 0.0
            return
        heard = answers[-1][0]
        unheard = self._rate * min(now - heard, LONGEST)
        self.waiting = end + unheard - offset
        self.age = max(0.0, now - self._came(offset))

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
