"""Matches streaming shuffles to the stages that write them: helper threads are named after the shuffle alone.

Spark numbers both the shuffles and the stages of a job from upstream to downstream, so they are matched in this order.
A shuffle's job follows from time: the threads of a shuffle start after its job was submitted. If jobs start too close
together, their shuffles stay unmatched until one of the jobs ends: no priority is better than that of another query.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from treadle.engines.spark.queries.rest import Job

TICK = 0.02
"""Seconds by which a thread may seem older than it is: the kernel counts start times in hundredths."""


class Hop(NamedTuple):
    """A shuffle of a job, written by the stage at this position."""

    job: Job
    position: int


class Shuffles:
    """The shuffles in use, and the job and stage that write each."""

    def __init__(self) -> None:
        self._hops: dict[int, Hop] = {}

    def get(self, shuffle: int) -> Hop | None:
        return self._hops.get(shuffle)

    def assign(self, seen: Mapping[int, float], jobs: Iterable[Job], *, complete: bool) -> None:
        """Match new shuffles to the jobs without matched shuffles. `complete`: the jobs of all running tasks are known.

        `seen` has the start time of the first thread of each shuffle, in seconds since the epoch. Threads of a batch
        appear one by one, so nothing is matched before all threads are there and all jobs are known.
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
        """Drop finished jobs, and running jobs with a shuffle that has ended: this shuffle was not theirs."""
        wrong = {hop.job.number for shuffle, hop in self._hops.items() if shuffle not in seen}
        self._hops = {
            shuffle: hop
            for shuffle, hop in self._hops.items()
            if hop.job.number in running and hop.job.number not in wrong
        }


def _certain(
    waiting: Sequence[Job], new: Sequence[int], began: Mapping[int, float]
) -> Iterable[tuple[Job, Sequence[int]]]:
    """Yield jobs with their shuffles, in order of submission, if all these shuffles started before the next submission.

    Jobs that overlap in time can't be separated, but the jobs after them can.
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
