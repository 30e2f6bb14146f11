"""Which stage writes and which one reads a streaming shuffle: helper threads are named after the shuffle alone.

Spark numbers shuffles when it plans a batch and stages when it submits the job, both from upstream to downstream: by
that order the shuffles of a job are matched to its stages. Whose they are when several queries begin a batch at once
is told by when their threads began; a match that was wrong shows when threads end before their job does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from treadle.engines.spark.rest import Job

Began = tuple[int, int]
"""When the first thread of a shuffle began: its start time, and its number within that."""
MOST_AT_ONCE = 6
"""Jobs whose order among each other is searched for; of more, the order of their shuffles is taken for theirs."""
LINGER = 2.0
"""Seconds for which threads of a job that is over may still be there, and are not taken for those of another."""


class Hop(NamedTuple):
    """A shuffle as one of a job's: it is written by the stage at this position."""

    job: Job
    position: int


class Shuffles:
    """The shuffles that are in use, and whose they are."""

    def __init__(self) -> None:
        self._hops: dict[int, Hop] = {}
        self._over: dict[int, float] = {}  # left by a job that is over: since when

    def get(self, shuffle: int) -> Hop | None:
        return self._hops.get(shuffle)

    def assign(self, seen: Mapping[int, Began], jobs: Iterable[Job], now: float, *, complete: bool) -> None:
        """Match new shuffles to the jobs that have none yet. `complete`: the jobs of all running tasks are known.

        Threads of a batch appear one by one, so nothing is matched before all are there; nor before it is known whose
        they can be.
        """
        running = {job.number: job for job in jobs}
        self._forget(seen, running, now)
        done = {hop.job.number for hop in self._hops.values()}
        waiting = [job for number, job in sorted(running.items()) if number not in done and len(job.stages) > 1]
        new = sorted(shuffle for shuffle in seen if shuffle not in self._hops and shuffle not in self._over)
        needed = sum(_shuffles_of(job) for job in waiting)
        if not waiting or not complete or len(new) < needed:
            return
        new = new[len(new) - needed :]  # what is left of a batch that nobody saw has lower numbers
        self._hops.update(_dealt(_order(waiting, new, seen), new))

    def _forget(self, seen: Mapping[int, Began], running: Mapping[int, Job], now: float) -> None:
        """Drop jobs that are over, and those that still run while a shuffle of theirs does not: it was not theirs."""
        wrong = {hop.job.number for shuffle, hop in self._hops.items() if shuffle not in seen}
        for shuffle, hop in list(self._hops.items()):
            if hop.job.number not in running:
                self._over[shuffle] = now
                del self._hops[shuffle]
            elif hop.job.number in wrong:
                del self._hops[shuffle]
        self._over = {s: since for s, since in self._over.items() if s in seen and now - since < LINGER}


def _shuffles_of(job: Job) -> int:
    return len(job.stages) - 1


def _order(jobs: Sequence[Job], shuffles: Sequence[int], began: Mapping[int, Began]) -> Sequence[Job]:
    """The order in which jobs were planned: the one by which the threads of their shuffles began as the jobs did."""
    if not 1 < len(jobs) <= MOST_AT_ONCE:
        return jobs

    def disagreement(order: Sequence[Job]) -> int:
        first: dict[int, Began] = {}
        for shuffle, hop in _dealt(order, shuffles).items():
            first[hop.job.number] = min(first.get(hop.job.number, began[shuffle]), began[shuffle])
        times = [first[job.number] for job in jobs]
        return sum(times[i] > times[j] for j in range(len(times)) for i in range(j))

    return min(permutations(jobs), key=disagreement)  # of equals the first, which is that of the jobs


def _dealt(jobs: Sequence[Job], shuffles: Sequence[int]) -> dict[int, Hop]:
    """A job's shuffles are planned in one go."""
    hops = [Hop(job, position) for job in jobs for position in range(_shuffles_of(job))]
    return dict(zip(shuffles, hops, strict=True))
