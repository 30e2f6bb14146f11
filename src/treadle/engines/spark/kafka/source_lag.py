"""The backlog of a source outside of the engine, in rows and in seconds, from the offsets that its consumer knows.

A consumer hears of new records only in answers, and asks for no more while it has records left. So after an answer,
records are assumed to arrive as fast as before. After the next answer, they are assumed to have arrived evenly between
the two.
"""

from __future__ import annotations

import math
from collections import deque

MEMORY, SHORT_MEMORY = 10.0, 2.0
"""Seconds over which the arrival rate is measured: without and with known times of the requests for end offsets."""
LONGEST = 30.0
"""Seconds for which records are assumed to arrive as before while a consumer gets no answer."""
MOST = 256
"""Maximum number of answers that are kept."""
SHORT = 0.1
"""Minimum seconds between two kept answers with the same end offset, while no new record arrives."""


class SourceLag:
    """The lag of one partition of a source, or of all if their offsets are summed up."""

    def __init__(self) -> None:
        self.waiting = 0.0
        """Records that the task has not read yet."""
        self.age = 0.0
        """Seconds since the next record to be read was written to Kafka."""
        self._answers: deque[tuple[float, float]] = deque(maxlen=MOST)
        """(Time when it was first known, end offset): the last end offset that is fully read, and all later ones."""
        self._ends: deque[tuple[float, float]] = deque(maxlen=MOST)

    def update(self, now: float, offset: float, end: float, asked: float = math.nan) -> None:
        """Update with the next offset to read, and the end offset that the consumer knows.

        `asked` is when that end was requested; without it, the consumer asks again whenever it has read all.
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
        if offset >= end and math.isnan(asked):  # the consumer has read all that it knows of, so it keeps asking
            self.waiting = self.age = 0.0
            return
        heard = answers[-1][0] if math.isnan(asked) else asked
        unheard = self._rate * min(now - heard, LONGEST)
        self.waiting = max(0.0, end + unheard - offset)
        if offset < end:
            self.age = max(0.0, now - self._came(offset))
        else:  # only records beyond the known end wait
            self.age = max(0.0, now - heard) if self.waiting >= 1.0 else 0.0

    @property
    def _rate(self) -> float:
        (first, least), (last, most) = self._ends[0], self._ends[-1]
        return (most - least) / (last - first) if last > first else 0.0

    def _came(self, offset: float) -> float:
        """Estimate when a record within the known end arrived."""
        time, end = self._answers[0]
        if offset < end:
            return time - (end - offset) / self._rate if self._rate > 0.0 else time
        for later, further in self._answers:
            if further > offset:
                return time + (later - time) * (offset - end) / (further - end)
            time, end = later, further
        return time
