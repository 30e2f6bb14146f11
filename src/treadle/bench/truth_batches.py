"""How true Treadle's figures of a query in micro-batches are, against counts of the application's own.

Rows in and out are counted by the query (`workloads/tapped_batches.py`). What waits is what the broker has, less what
the application's own listener has seen batches read; the age of the oldest such row follows from when the broker had
it. What rows cost is what the kernel says of the threads of tasks and of Python's workers.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.bench.attach import Rig
from treadle.bench.claims import Claims, at_most
from treadle.bench.truth_taps import FEW_ROWS, SMALL_PART, Progress, Taps, grown, median, part, read_taps
from treadle.engines.spark.application import Application
from treadle.engines.spark.engine import SparkEngine
from treadle.model import Floats
from treadle.observe.provider import Provider
from treadle.workloads.realtime import Chain
from treadle.workloads.tapped_batches import TappedBatches

METRICS = ("queue", "tuples_in", "tuples_out", "head_age", "cpu_time")
PERIOD = 0.05
RATES = (400.0, 2500.0, 400.0)
"""Rows a second, one after the other: small batches, large ones, and small ones again."""
WARM = 10
"""Batches before the figures are compared."""
QUERY = Chain("batched", ())
TASK = "Executor task"
"""What the kernel knows of the name of a task's thread."""


class Moment(NamedTuple):
    """What Treadle says of the query, and what the broker and the kernel say at the same time."""

    time: float
    said: Mapping[str, float]
    came: float
    """Rows in the topic."""
    cpu: float
    """Seconds that all threads of tasks and Python's workers have used."""


def run(*, seconds: float = 20.0, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """The figures; each phase of the load lasts so long."""
    with tempfile.TemporaryDirectory(prefix="treadle-") as folder:
        taps, batches = Path(folder, "taps"), Path(folder, "batches")
        progress("starting Spark", 0.0)

        def start(servers: str, core: int | None) -> TappedBatches:
            return TappedBatches(QUERY, servers, taps, batches, core)

        with Rig([QUERY], application=start) as rig:
            progress("warming up", 0.1)
            rig.produce({QUERY.name: RATES[0]})
            while len(_text(str(batches)).splitlines()) < WARM:
                rig.take(0.5)
            moments: list[Moment] = []
            with SparkEngine(Application.find(pid=rig.application.pid), knobs={}, mbeans=False) as engine:
                provider = Provider(engine.offers, METRICS)
                for number, rate in enumerate(RATES):
                    progress(f"{rate:g} rows a second", 0.3 + 0.7 * number / len(RATES))
                    rig.produce({QUERY.name: rate})
                    moments += _watch(engine, provider, rig, seconds)
            rig.produce({})
        return compare(moments, read_taps(taps), np.loadtxt(batches))


def claims(found: Mapping[str, Any]) -> Claims:
    """What ought to hold of a query in micro-batches."""
    aims = (("rate_error", 0.02), ("selectivity_error", 0.02), ("age_error_ms", 100.0))
    return [
        at_most("micro-batch: queue, part of moments with a large error", found["queue_error"]["large"], 0.5),
        *(at_most(f"micro-batch: {name}", found[name], aim) for name, aim in aims),
    ]


def _watch(engine: SparkEngine, provider: Provider, rig: Rig, seconds: float) -> list[Moment]:
    found: list[Moment] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        if engine.news():
            topology = engine.topology()
            snapshot = provider.update(topology, engine.sample(provider.base))
            rows = [row for row, each in enumerate(topology.instances) if each.query == QUERY.name]
            if len(rows) == 1 and engine.counted_at > (found[-1].time if found else -math.inf):
                said = {name: float(snapshot[name][rows[0]]) for name in METRICS}
                found.append(Moment(engine.counted_at, said, rig.came(QUERY.name), _task_cpu(rig.application.pid)))
        rig.take_some()
        time.sleep(max(0.0, PERIOD - (time.monotonic() - began)))
    return found


def _task_cpu(pid: int) -> float:
    """Seconds of all threads that have worked on tasks, which Spark keeps for a minute, and of Python's workers."""
    tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    tasks = [
        f"/proc/{pid}/task/{tid}/schedstat" for tid in tids if _text(f"/proc/{pid}/task/{tid}/comm").startswith(TASK)
    ]
    workers = [f"/proc/{child}/schedstat" for child in _descendants(pid)]
    return sum(int(_text(path).split()[0]) for path in (*tasks, *workers) if _text(path)) / 1e9


def _descendants(pid: int) -> list[int]:
    lists = [_text(str(file)) for file in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for each in lists for child in each.split()]
    return [*children, *(each for child in children for each in _descendants(child))]


def compare(moments: Sequence[Moment], taps: Taps, batches: Floats) -> dict[str, Any]:
    """`batches` are times and rows of all that were done."""
    when = np.array([moment.time for moment in moments])
    said = {name: np.array([moment.said[name] for moment in moments]) for name in METRICS}
    came = np.array([moment.came for moment in moments])
    done = np.append(0.0, np.cumsum(batches[:, 1]))[np.searchsorted(batches[:, 0], when, side="right")]
    true = came - done
    off = np.abs(said["queue"] - true)
    # The broker's counts at other moments tell when it had the oldest row that no batch has read.
    age = when - np.interp(done + 1.0, came, when)
    waits = (true > 0.0) & (done + 1.0 >= came[0])
    taken, left = (taps.at(taps.rows, place, when) for place in ("in", "out"))
    cpu = np.array([moment.cpu for moment in moments])
    mine = {
        key: grown(when, said[name]) for key, name in (("in", "tuples_in"), ("out", "tuples_out"), ("cpu", "cpu_time"))
    }
    true_of = {key: grown(when, column) for key, column in (("in", taken), ("out", left), ("cpu", cpu))}
    return {
        "moments": len(when),
        "queue_error": {
            "median_rows": median(off),
            "median_part": median(off / np.maximum(true, 1.0)),
            "large": float(np.mean(~(off <= np.maximum(FEW_ROWS, SMALL_PART * true)))),
            "median_queue": median(true),
        },
        "rate_error": median(part(mine["in"], true_of["in"])),
        "selectivity_error": median(part(mine["out"] / mine["in"], true_of["out"] / true_of["in"])),
        "cost_error": median(part(mine["cpu"] / mine["in"], true_of["cpu"] / true_of["in"])),
        "age_error_ms": median(np.abs(said["head_age"] - age)[waits]) * 1e3,
        "median_age_ms": median(age[waits]) * 1e3,
        "batches": len(batches),
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # it has ended, or has not begun
        return ""
