"""Compares Treadle's figures of a query in micro-batches with the application's own counts.

Rows in and out are counted by the query (`workloads/tapped_batches.py`). The true queue is the number of rows in the
topic, less those of finished batches, which the application's own listener logs; the age of its oldest row is the time
since the topic got that row. The true cost is the CPU time of task threads and Python workers, from the kernel.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.bench.attach.rig import Rig
from treadle.bench.claims import Claims
from treadle.bench.truth.taps import Progress, Taps, claims_of, median, queue_error, rate_errors, read_taps, readings
from treadle.engines.spark.application import Application
from treadle.engines.spark.engine import SparkEngine
from treadle.linux.thread_times import ThreadTimes
from treadle.model import Floats
from treadle.observe.provider import Provider
from treadle.workloads.realtime import Chain
from treadle.workloads.tapped_batches import TappedBatches

METRICS = ("queue", "tuples_in", "tuples_out", "head_age", "cpu_time")
RATES = (400.0, 2500.0, 400.0)
"""Rows per second in turn: small batches, large ones, and small ones again."""
WARM = 10
"""Number of batches that run before figures are compared."""
QUERY = Chain("batched", ())
TASK = "Executor task"
"""The beginning of the names of task threads; the kernel keeps 15 characters of a name."""


class Moment(NamedTuple):
    """Treadle's figures of the query, and those of the broker and the kernel at the same time."""

    time: float
    said: Mapping[str, float]
    came: float
    """Number of rows in the topic."""
    cpu: float
    """CPU seconds of all task threads and Python workers."""


def run(*, seconds: float = 20.0, progress: Progress = lambda *_: None) -> dict[str, Any]:
    """Return the figures; each phase of the load lasts `seconds`."""
    with tempfile.TemporaryDirectory(prefix="treadle-") as folder:
        taps, batches = Path(folder, "taps"), Path(folder, "batches")
        progress("starting Spark", 0.0)

        def start(servers: str, core: int | None) -> TappedBatches:
            return TappedBatches(QUERY, servers, taps, batches, core)

        with Rig([QUERY], application=start) as rig:
            progress("warming up", 0.1)
            rig.produce({QUERY.name: RATES[0]})
            while len(_text(batches).splitlines()) < WARM:
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
    """Return the claims about a query in micro-batches."""
    return claims_of("micro-batch", found)


def _watch(engine: SparkEngine, provider: Provider, rig: Rig, seconds: float) -> list[Moment]:
    found: list[Moment] = []
    times = ThreadTimes()
    for when, snapshot in readings(engine, provider, rig, seconds):
        rows = [row for row, each in enumerate(snapshot.topology.instances) if each.query == QUERY.name]
        if len(rows) == 1:
            said = {name: float(snapshot[name][rows[0]]) for name in METRICS}
            found.append(Moment(when, said, rig.came(QUERY.name), _task_cpu(times, rig.application.pid)))
    times.close()
    return found


def _task_cpu(times: ThreadTimes, pid: int) -> float:
    """Return the CPU seconds of Python workers and of all task threads; Spark keeps idle ones for a minute."""
    names = {int(file.parent.name): _text(file) for file in Path(f"/proc/{pid}/task").glob("*/comm")}
    tasks = [(pid, tid) for tid, name in names.items() if name.startswith(TASK)]
    workers = [(child, child) for child in _descendants(pid)]
    return float(np.nansum(times.sample((*tasks, *workers)).cpu_time))


def _descendants(pid: int) -> list[int]:
    lists = [_text(file) for file in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for each in lists for child in each.split()]
    return [*children, *(each for child in children for each in _descendants(child))]


def compare(moments: Sequence[Moment], taps: Taps, batches: Floats) -> dict[str, Any]:
    """Return the errors of Treadle's figures; `batches` has a line for each finished batch: its end time and rows."""
    when = np.array([moment.time for moment in moments])
    said = {name: np.array([moment.said[name] for moment in moments]) for name in METRICS}
    came = np.array([moment.came for moment in moments])
    done = np.append(0.0, np.cumsum(batches[:, 1]))[np.searchsorted(batches[:, 0], when, side="right")]
    true = came - done
    # The broker's counts over time show when it got the oldest row that no batch has read.
    age = when - np.interp(done + 1.0, came, when)
    waits = (true > 0.0) & (done + 1.0 >= came[0])
    taken, left = (taps.at(taps.rows, place, when) for place in ("in", "out"))
    cpu = np.array([moment.cpu for moment in moments])
    mine = {"in": said["tuples_in"], "out": said["tuples_out"], "cpu": said["cpu_time"]}
    return {
        "moments": len(when),
        "queue_error": queue_error(said["queue"], true),
        **rate_errors(when, mine, {"in": taken, "out": left, "cpu": cpu}),
        "age_error_ms": median(np.abs(said["head_age"] - age)[waits]) * 1e3,
        "median_age_ms": median(age[waits]) * 1e3,
        "batches": len(batches),
    }


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended, or has not begun
        return ""
