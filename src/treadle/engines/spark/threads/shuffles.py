"""Which stage writes and which one reads a streaming shuffle: helper threads are named after the shuffle alone.

Spark numbers the shuffles of a job and its stages both from upstream to downstream, so by that order they are matched.
Whose a shuffle is, is told by time: its threads begin after its job was submitted. What begins so close to another
that this says nothing is left unmatched, until one of them ends: no priority is better than that of somebody else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from treadle.engines.spark.queries.rest import Job

TICK = 0.02
"""Seconds by which a thread may seem to be older than it is: the kernel counts in hundredths."""


class Hop(NamedTuple):
    """A shuffle as one of a job's: it is written by the stage at this position."""

    job: Job
    position: int


class Shuffles:
    """The shuffles that are in use, and whose they are."""

    def __init__(self) -> None:
        self._hops: dict[int, Hop] = {}

    def get(self, shuffle: int) -> Hop | None:
        return self._hops.get(shuffle)

    def assign(self, seen: Mapping[int, float], jobs: Iterable[Job], *, complete: bool) -> None:
        """Match new shuffles to the jobs that have none yet. `complete`: the jobs of all running tasks are known.

        `seen` says when the first thread of each shuffle began, in seconds since the epoch. Threads of a batch appear
        one by one, so nothing is matched before all are there; nor before it is known whose they can be.
        """
        running = {job.number: job for job in jobs}
        self._forget(seen, running)
        done = {hop.job.number for hop in self._hops.values()}
        waiting = sorted(
            (job for number, job in running.items() if number not in done and _shuffles_of(job)), key=_submitted
        )
        if complete and all(job.submitted for job in waiting):
            new = sorted(shuffle for shuffle in seen if shuffle not in self._hops)
            for job, mine in _certain(waiting, new, seen):
                self._hops.update({shuffle: Hop(job, position) for position, shuffle in enumerate(mine)})

    def _forget(self, seen: Mapping[int, float], running: Mapping[int, Job]) -> None:
        """Drop jobs that are over, and those that still run while a shuffle of theirs does not: it was not theirs."""
        wrong = {hop.job.number for shuffle, hop in self._hops.items() if shuffle not in seen}
        self._hops = {
            shuffle: hop
            for shuffle, hop in self._hops.items()
            if hop.job.number in running and hop.job.number not in wrong
        }


def _certain(
    waiting: Sequence[Job], new: Sequence[int], began: Mapping[int, float]
) -> Iterable[tuple[Job, Sequence[int]]]:
    """The jobs, in the order of their submission, of which all shuffles began before the next job was submitted.

    Of some that overlap with each other nobody can tell, but those after them can be told again.
    """
    together: list[Job] = []
    for place, job in enumerate(waiting, start=1):
        following = waiting[place].submitted if place < len(waiting) else math.inf
        together.append(job)
        mine = [each for each in new if together[0].submitted - TICK <= began[each] < following - TICK]
        if len(mine) == sum(map(_shuffles_of, together)):
            if len(together) == 1:
                yield job, mine
            together = []


def _submitted(job: Job) -> float:
    return job.submitted


def _shuffles_of(job: Job) -> int:
    return len(job.stages) - 1
