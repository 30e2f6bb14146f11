"""Measures the CPU that each query of a run uses, the most that it could use, and the cores available to all.

The threads of tasks are measured (`workers`); on a cluster with a gate executors are not measured, and a slot of the
gate stands for a core. It knows hops and counters. Stream-Economics section 3.3, and Alg. 1 lines 1 to 3.
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
"""First batches of a hop, which say nothing of what later batches cost."""
LONGEST_COLD = 15
"""Most cycles to wait for such batches before anything is decided."""


class QueryWork:
    """CPU counters by task of a flow, from before the hops of the run start until `close`."""

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
        """Whether an executor has reported its cores; True where executors are not measured."""
        return self._cores is None or bool(self._cores.count)

    @property
    def measures(self) -> bool:
        """Whether CPU is measured; otherwise the slots that batches hold stand for CPU."""
        return self._cores is not None

    def close(self) -> None:
        if self._cores is not None:
            self._cores.close()

    def cold(self) -> bool:
        """Whether first batches of a hop have run since the last call, or run now: the JVM compiles code in them.

        False after `LONGEST_COLD` such calls in a row.
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
        """All counters so far, in seconds: how long each task's batches took; the rest is for `of`."""
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
        """From counts per second: the cores that each task uses, those available to all, and the most for each task.

        Available is what other processes leave of the cores, or what the slots let through, whichever is less.
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
        """Seconds of a hop's batches, without the first ones."""
        if hop.batches < COLD:
            return 0.0
        return hop.busy - self._cold.setdefault(hop.name, hop.busy)


def _cores(spark: SparkSession, *, gated: bool) -> LocalCores | ClusterCores | None:
    """The cores that Spark works on; None on a cluster with a gate, where slots stand for cores."""
    if str(spark.sparkContext.master).startswith("local"):
        return LocalCores(spark)
    return None if gated else ClusterCores(Table(spark))
