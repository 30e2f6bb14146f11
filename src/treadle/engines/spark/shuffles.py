"""Which stage writes and which one reads a streaming shuffle: helper threads are named after the shuffle alone.

Spark numbers shuffles when it plans a batch and stages when it submits the job, both from upstream to downstream. So
the shuffles of one job are matched to its stages by their order, and those of several jobs by that of the jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from treadle.engines.spark.rest import Job


class Hop(NamedTuple):
    """A shuffle as one of a job's: it is written by the stage at this position."""

    job: Job
    position: int


class Shuffles:
    """The shuffles that are in use, and whose they are."""

    def __init__(self) -> None:
        self._hops: dict[int, Hop] = {}

    def assign(self, seen: Collection[int], jobs: Iterable[Job], *, complete: bool) -> None:
        """Match new shuffles to the jobs that have none yet. `complete`: the jobs of all running tasks are known.

        Threads of a batch appear one by one, so nothing is matched before all are there; nor before it is known whose
        they can be.
        """
        running = sorted(set(jobs), key=lambda job: job.number)
        numbers = {job.number for job in running}
        self._hops = {s: hop for s, hop in self._hops.items() if s in seen or hop.job.number in numbers}
        done = {hop.job.number for hop in self._hops.values()}
        waiting = [job for job in running if job.number not in done and len(job.stages) > 1]
        new = sorted(set(seen) - self._hops.keys())
        needed = sum(len(job.stages) - 1 for job in waiting)
        if not waiting or not complete or len(new) < needed:
            return
        new = new[len(new) - needed :]  # what is left of a batch that is over has lower numbers
        for job in waiting:
            for position in range(len(job.stages) - 1):
                self._hops[new.pop(0)] = Hop(job, position)

    def get(self, shuffle: int) -> Hop | None:
        return self._hops.get(shuffle)
