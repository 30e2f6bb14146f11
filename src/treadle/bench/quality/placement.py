"""Runs a scenario of `treadle bench quality` on a cluster to which workers are added (Stream-Economics, 7.1).

Each worker has one core of this machine. Broker, driver and load have the last core. If there is a worker on that core,
it has to share the core with them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.bench.quality.scenario_run import STARTING, Place, Progress, measure
from treadle.bench.quality.scenarios import Made, Phase, Scenario
from treadle.bench.quality.standalone import Standalone
from treadle.broker import Broker, free_port
from treadle.errors import EngineError
from treadle.pipelines.quality.placement import place
from treadle.pipelines.spark.workers import cluster_session
from treadle.workloads.burn import calibrate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from treadle.pipelines.run.run import Run

CONFIG = {"spark.executor.memory": "768m", "spark.driver.host": "127.0.0.1", "spark.driver.memory": "1g"}


class ClusterPlace(Place):
    """A session on a cluster, with as many workers as the phase requires."""

    def __init__(
        self, spark: SparkSession, servers: str, scenario: Scenario, unit: float, cycle: float, cluster: Cluster
    ) -> None:
        super().__init__(spark, servers, scenario, unit, cycle)
        self._cluster = cluster
        self._warming: dict[str, float] = {}
        self._longest_warm_up = 0.0

    def start(self, made: Made, folder: Path, options: Mapping[str, Any]) -> Run:
        given = {**options, "folder": folder, "channels": "kafka", "layout": "fused"}
        run: Run = made.pipeline.start(self.spark, placement=place(instances=self.scenario.instances), **given)
        return run

    def begin(self, phase: Phase) -> None:
        self._cluster.have(phase.workers)

    def workers(self, run: Run) -> dict[str, tuple[float, float]]:
        status = _status(run)
        found = status["workers"]
        now = time.monotonic()
        self._warming = {hop: self._warming.get(hop, now) for hop in status["warming"]}
        self._longest_warm_up = max([self._longest_warm_up, *(now - began for began in self._warming.values())])
        return {name: (worker["used"], worker["used_by_others"] or 0.0) for name, worker in found.items()}

    def results(self, run: Run, made: Made, sent: Mapping[str, int]) -> dict[str, Any]:
        """Return also the moves, and the numbers of rows that a sink got not at all or more than once."""
        status, came = _status(run), sum(sent.values())
        taken = {sink: run.hops[sink].tuples_in for sink in status["sinks"]}
        return {
            **super().results(run, made, sent),
            "moves": [move for move in status["moves"] if move["origin"]],
            "longest_warm_up_s": round(self._longest_warm_up, 2),
            "rows_lost": sum(max(came - rows, 0) for rows in taken.values()),
            "rows_doubled": sum(max(rows - came, 0) for rows in taken.values()),
        }


class Cluster:
    """A master and a variable number of workers, each on a core of its own."""

    def __init__(self, standalone: Standalone, cores: Sequence[int]) -> None:
        self._standalone = standalone
        self._cores = cores
        self._count = 0

    def have(self, count: int) -> None:
        """Add or kill workers until there are `count`; the last added are killed first."""
        if count > len(self._cores):
            remedy = f"run it on a machine with {count} cores"
            raise EngineError(f"this machine has only {len(self._cores)} cores", where="bench quality", remedy=remedy)
        while self._count < count:
            self._standalone.add(f"worker-{self._count + 1}", self._cores[self._count : self._count + 1])
            self._count += 1
        while self._count > count:
            self._standalone.kill(f"worker-{self._count}")
            self._count -= 1


def run(scenario: Scenario, *, cycle: float, pace: float, plot: Path | None, progress: Progress) -> dict[str, Any]:
    """Run a scenario on a cluster and a broker of its own; return the figures."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="treadle-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        os.sched_setaffinity(0, cores[-1:])  # children inherit it
        stack.callback(os.sched_setaffinity, 0, cores)
        progress("starting Kafka and a cluster", 0.0)
        broker = Broker.start(folder, free_port(), timeout=STARTING)
        stack.callback(broker.stop)
        standalone = stack.enter_context(Standalone(folder))
        cluster = Cluster(standalone, cores)
        cluster.have(scenario.phases[0].workers)
        spark = cluster_session("bench-quality", master=standalone.master, config=CONFIG)
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("OFF")  # a batch that is stopped half-way is no error here
        place = ClusterPlace(spark, broker.bootstrap, scenario, calibrate(spark), cycle, cluster)
        return measure(place, pace=pace, plot=plot, progress=progress)


def _status(run: Run) -> dict[str, Any]:
    assert run.promises is not None
    return run.promises.status()
