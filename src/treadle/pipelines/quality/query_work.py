"""Measures the CPU that each query of a run uses, the most CPU that it can use, and the cores available to all queries.

The CPU of a query is that of its tasks' threads (`spark.workers`). On a cluster with a gate, executors are not
measured: there each slot of the gate counts as a core, in use while a batch holds it. Stream-Economics section 3.3, and
Alg. 1 lines 1 to 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from treadle.decide.quality import Flow
from treadle.decide.quality.room import HEADROOM, ceilings, room
from treadle.model import Floats
from treadle.pipelines.hops.hop import Hop, State
from treadle.pipelines.hops.running import Running
from treadle.pipelines.spark.workers import ClusterCores, LocalCores, Table, Tasks, by_query, divided

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLD = 2
"""Number of first batches of a hop that are not measured: the JVM compiles code in them, so later ones cost less."""
LONGEST_COLD = 15
"""Longest time in cycles for which decisions wait because hops run their first batches."""


class QueryWork:
    """CPU counters of a run, by task of its flow. They count from creation, before the hops start, until `close`."""

    def __init__(self, run: Running, flow: Flow) -> None:
        self._flow = flow
        self._gate = None if run.in_real_time else run.gate
        self._cores = _cores(run.spark, gated=self._gate is not None)
        self._hops: Mapping[str, Hop] = run.hops
        self._query_ids: dict[str, str] = {}
        """By hop: the Spark id of its query, which stays the same after a restart."""
        self._cold: dict[str, float] = {}
        self._cold_batches = self._cold_cycles = 0

    @property
    def ready(self) -> bool:
        """Whether the number of cores is known, which executors report on a cluster; True where CPU is not measured."""
        return self._cores is None or bool(self._cores.count)

    @property
    def measures(self) -> bool:
        """Whether CPU is measured; otherwise a slot that a batch holds counts as a core in use."""
        return self._cores is not None

    def close(self) -> None:
        if self._cores is not None:
            self._cores.close()

    def cold(self) -> bool:
        """Whether a hop has run one of its first `COLD` batches since the last call, or runs one now.

        After `LONGEST_COLD` calls in a row for which that is so, it returns False. Always False without a gate, and
        where CPU is not measured.
        """
        if self._gate is None or self._cores is None:
            return False
        hops = list(self._hops.values())
        done = sum(min(hop.batches, COLD) for hop in hops)
        cold = done != self._cold_batches or any(hop.batches < COLD and hop.state is State.RUNNING for hop in hops)
        self._cold_batches = done
        self._cold_cycles = self._cold_cycles + 1 if cold else 0
        return 0 < self._cold_cycles <= LONGEST_COLD

    def read(self) -> list[float]:
        """Return all counters so far, in seconds. The growth of this array per second is the `counted` of `of`.

        First comes by task the time of its batches. Where CPU is measured, next come the CPU of Spark's processes, of
        other processes and of Python workers, then the `Tasks` of each task's query and those of all other queries.
        """
        held = [self._held(self._hops[name]) if name in self._hops else 0.0 for name in self._flow.tasks]
        if self._cores is None:
            return held
        for name, hop in self._hops.items():
            if name not in self._query_ids and hop.query is not None:
                self._query_ids[name] = str(hop.query.id)
        used, python = self._cores.read(), self._cores.python
        tasks = by_query(self._cores.tasks(), [self._query_ids.get(name, name) for name in self._flow.tasks])
        return [*held, *used, python, *tasks.ravel().tolist()]

    def of(self, counted: Floats, *, behind: bool) -> tuple[Floats, float, Floats]:
        """Compute by task the cores that it uses, the cores available to all tasks, and by task the most it can use.

        `counted` is the growth per second of the counters of `read`. The available cores are those that other processes
        leave, or those that batches in all slots can use, whichever is less.
        """
        if self._cores is None:
            assert self._gate is not None
            return counted, HEADROOM * self._gate.slots, np.ones(len(counted))
        held, used, tasks = np.split(counted, np.cumsum([len(self._flow), 3]))
        count = self._cores.count
        ours, others, python = used.tolist()
        cpu = divided(ours, python, tasks.reshape(-1, len(Tasks._fields)))[:-1]
        cores = room(count, ours, others, behind=behind)
        most = np.full(len(held), float(count))
        if self._gate is not None and held.sum() > 0.0:
            at_once = min(self._gate.slots, int((self._flow.copies > 0).sum()))
            cores = min(cores, HEADROOM * at_once * ours / held.sum())
            most = ceilings(cpu, held, count, ours + others)
        return cpu, cores, most

    def _held(self, hop: Hop) -> float:
        """How long a hop's batches have taken in seconds, without its first `COLD` batches."""
        if hop.batches < COLD:
            return 0.0
        return hop.busy - self._cold.setdefault(hop.name, hop.busy)


def _cores(spark: SparkSession, *, gated: bool) -> LocalCores | ClusterCores | None:
    """Return the counters of the cores that Spark uses; None on a cluster with a gate, where slots count as cores."""
    if str(spark.sparkContext.master).startswith("local"):
        return LocalCores(spark)
    return None if gated else ClusterCores(Table(spark))
