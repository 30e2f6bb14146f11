"""Measures Haren's multi-class workload on Spark under several schedulers: same session, same input, one after another.

The session has Spark's FAIR mode on. Queries without a pool are in the default one, which is FIFO inside, so this is
Spark's FIFO. Latency is that of results. A row that still waits at the end counts, with its age so far, as the mean
number of results that it would make: so a scheduler that starves queries gets a high latency.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.bench.usage import Meter
from treadle.pipelines.hops.latency import Part, summarise
from treadle.workloads import multi_class
from treadle.workloads.generator import Generator
from treadle.workloads.multi_class import Chain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from treadle.pipelines.hops.hop import Hop
    from treadle.pipelines.run.run import Run

Progress = Callable[[str, float], None]
LOOK = 0.25
"""Seconds between two samples of the queues."""

_FIFO = {"enforce": "none", "policy": "none"}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "fifo": {"layout": "fused", **_FIFO},
    "fair": {"layout": "fused", "enforce": "pools", "policy": "user-priority"},
    "treadle": {"layout": "fused", "policy": "multi-class"},
    "hr": {"layout": "fused", "policy": "highest-rate"},
    "chain": {"layout": "fused", "policy": "chain"},
    "fcfs": {"layout": "fused", "policy": "fcfs"},
    "qs": {"layout": "fused", "policy": "queue-size"},
    "fifo, hops": {"layout": "hops", **_FIFO},
    "treadle, hops": {"layout": "hops", "policy": "multi-class"},
}
"""By variant: options of the pipeline. The variants are Spark's own two schedulers, Treadle for this scenario and
single policies, with one Spark query for each of the 13 queries; `fifo` and `treadle` also run with one for each
operator and sink."""


@dataclass(frozen=True)
class Measured:
    """One run: latencies by class, throughput and waiting rows."""

    variant: str
    high: tuple[Part, ...]
    low: tuple[Part, ...]
    waiting_high: tuple[Part, ...]
    waiting_low: tuple[Part, ...]
    rows_per_s: float
    """Source rows per second that are completely processed: the results, divided by the selectivity of the query."""
    queued: tuple[tuple[float, float, float], ...]
    """For each sample: seconds since `began`, number of rows in all channels, and its variance over channels."""
    began: float
    seconds: float
    cpu: Mapping[str, float] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """Return the figures: latencies in milliseconds, rows, and the entries of `cpu`."""
        high = summarise([*self.high, *self.waiting_high])
        low = summarise([*self.low, *self.waiting_low])
        every = summarise([*self.high, *self.low, *self.waiting_high, *self.waiting_low])
        queued = np.array(self.queued)
        return {
            "high_p99_ms": high.p99 * 1e3,
            "high_mean_ms": high.mean * 1e3,
            "high_max_ms": high.max * 1e3,
            "low_p99_ms": low.p99 * 1e3,
            "low_mean_ms": low.mean * 1e3,
            "mean_ms": every.mean * 1e3,
            "max_ms": every.max * 1e3,
            "rows_per_s": self.rows_per_s,
            "queued_rows": float(queued[:, 1].mean()),
            "queue_variance": float(queued[:, 2].mean()),
            **self.cpu,
        }


def measure(
    spark: SparkSession,
    queries: Sequence[Chain],
    variant: str,
    *,
    seconds: float = 20.0,
    warm: float = 8.0,
    progress: Progress | None = None,
    **options: Any,
) -> Measured:
    """Run the workload once, in a folder of its own that is removed afterwards.

    A variant that is not in `VARIANTS` is defined by `options`.
    """
    folder = Path(tempfile.mkdtemp(prefix="treadle-"))
    tell = progress or (lambda *_: None)
    try:
        pipeline = multi_class.pipeline(queries)
        chosen = {"limit_rows": 100_000_000, **VARIANTS.get(variant, {}), **options}
        with pipeline.start(spark, folder=folder, **chosen) as run, Generator(multi_class.flows(queries, run)):
            _wait(run, warm, lambda passed: tell(f"{variant}: warming up", passed / (warm + seconds)))
            began, before, meter = time.time(), run.gate.stats.idle, Meter(spark)
            queued: list[tuple[float, float, float]] = []

            def look(passed: float) -> None:
                queues = [channel.rows for channel in run.channels.values()]
                queued.append((passed, float(sum(queues)), float(np.var(queues))))
                tell(variant, (warm + passed) / (warm + seconds))

            _wait(run, seconds, look)
            took = time.time() - began
            used = meter.read()
            cpu = {
                "spark_cores": used.spark_cores,
                "treadle_cores": used.treadle_cores,
                "slot_idle_share": (run.gate.stats.idle - before) / took / run.gate.slots,
            }
            measured = _measured(run, queries, variant, began, took, queued, cpu)
            run.stop(timeout=1.0)  # batches under Spark alone may last for long
            return measured
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(
    run: Run,
    queries: Sequence[Chain],
    variant: str,
    began: float,
    took: float,
    queued: list[tuple[float, float, float]],
    cpu: Mapping[str, float],
) -> Measured:
    out: dict[bool, list[Part]] = {True: [], False: []}
    waiting: dict[bool, list[Part]] = {True: [], False: []}
    done = 0.0
    now = time.time()
    for query in queries:
        for hop in run.hops.values():
            if hop.name != query.name and not hop.name.startswith(f"{query.name}_"):
                continue
            each = results(query, hop, run.options.layout)
            waiting[query.urgent] += [
                Part(now, each * backlog.rows, now - backlog.oldest, now - backlog.mean)
                for backlog in hop.backlogs()
                if backlog.rows
            ]
            if hop.latency is not None:
                parts = [part._replace(rows=each * part.rows) for part in hop.latency.parts(began)]
                out[query.urgent] += parts
                done += sum(part.rows for part in parts) / query.selectivity
    return Measured(
        variant,
        tuple(out[True]),
        tuple(out[False]),
        tuple(waiting[True]),
        tuple(waiting[False]),
        done / took,
        tuple(queued),
        began,
        took,
        cpu,
    )


def results(query: Chain, hop: Hop, layout: str) -> float:
    """Return how many results of the query a row that the hop reads makes on average."""
    if layout == "fused":
        return query.selectivity
    return 1.0 if hop.name == query.name else math.prod(query.keeps[int(hop.name.rpartition("_")[2]) :])


def _wait(run: Run, seconds: float, look: Callable[[float], None]) -> None:
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        run.check()
        look(passed)
        time.sleep(LOOK)
