"""`treadle bench truth`: how exact are Treadle's figures of an application that it only observes?

The application counts its own rows by expressions at the start and the end of each stage (`workloads/tapped.py`). Every
2 ms it writes for each of these places how many rows have passed, when the last one was made, and the CPU time of the
threads that processed them. These counts don't use Spark's counters, on which Treadle's figures rest. Both use the same
clock and are compared at the moments of Treadle's readings, while the load is below the application's capacity, above
it, and below it again. `batches.py` does the same with micro-batches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treadle.bench.attach.rig import Rig
from treadle.bench.claims import Claims, at_most
from treadle.bench.truth import batches
from treadle.bench.truth.taps import (
    FEW_ROWS,
    Progress,
    Taps,
    claims_of,
    decided_error,
    median,
    queue_error,
    rate_errors,
    read_latest,
    read_taps,
    readings,
)
from treadle.engines.spark.application import Application
from treadle.engines.spark.engine import SparkEngine
from treadle.errors import EngineError
from treadle.model import Floats
from treadle.observe.provider import Provider
from treadle.workloads.realtime import Chain
from treadle.workloads.tapped import STAGES, Tapped

AGES, RATIOS = ("head_age", "latency"), ("cost", "selectivity")
METRICS = ("queue", "external_queue", "tuples_in", "tuples_out", "cpu_time", "output_queue", *AGES, *RATIOS)
PHASES = (0.7, 1.4, 0.7)
"""Loads in turn, as shares of the application's capacity."""
BATCH = "10 seconds"


class Moment(NamedTuple):
    """Treadle's figures at one moment; each column has one value per stage, for all its partitions together."""

    time: float
    columns: Mapping[str, Floats]


def run(*, seconds: float = 20.0, progress: Progress | None = None) -> dict[str, Any]:
    """Return the figures of Real-Time Mode and of micro-batches; each phase of the load lasts `seconds`."""
    tell = progress or (lambda *_: None)
    batched = batches.run(seconds=seconds, progress=lambda what, done: tell(f"micro-batch: {what}", 0.4 * done))
    stages, rate = _real_time(seconds, lambda what, done: tell(f"real time: {what}", 0.4 + 0.6 * done))
    return {
        "rows_per_s": round(rate, 1),
        "stages": stages,
        "micro_batch": batched,
        "claims": claims(stages) + batches.claims(batched),
    }


def _real_time(seconds: float, tell: Progress) -> tuple[dict[str, Any], float]:
    query = Chain("tapped", ())
    with tempfile.TemporaryDirectory(prefix="treadle-") as folder:
        file = Path(folder, "taps")
        tell("starting Spark", 0.0)
        with Rig([query], batch=BATCH, application=lambda servers, core: _start(query, servers, file, core)) as rig:
            tell("warming up", 0.1)
            rate = _capacity(rig, file, seconds)
            moments: list[Moment] = []
            with SparkEngine(Application.find(pid=rig.application.pid), knobs={}, mbeans=False) as engine:
                provider = Provider(engine.offers, METRICS)
                for number, load in enumerate(PHASES):
                    tell(f"at {load:g} of what it can do", 0.3 + 0.7 * number / len(PHASES))
                    rig.produce({query.name: load * rate})
                    moments += _watch(engine, provider, rig, seconds)
            rig.produce({})
        return _compared(moments, read_taps(file)), rate


def claims(figures: Mapping[str, Mapping[str, Any]]) -> Claims:
    """Return the claims about each stage."""
    made = [claim for stage, found in figures.items() for claim in claims_of(stage, found)]
    for stage, found in figures.items():
        made.append(at_most(f"{stage}: selectivity for decisions", found["decided_selectivity_error"], 0.02))
        made.append(at_most(f"{stage}: cost for decisions, by Treadle's counts", found["decided_cost_error"], 0.05))
    made.append(at_most("block: taken for idle while rows wait", figures["block"]["taken_for_idle"], 0.0))
    return made


def _start(query: Chain, servers: str, file: Path, core: int | None) -> Tapped:
    return Tapped(query, servers, file, batch=BATCH, core=core)


def _capacity(rig: Rig, file: Path, seconds: float) -> float:
    """Return the capacity in input rows per second, measured by a flood once the JVM has compiled the code."""
    rig.produce({"tapped": 3000.0})
    rig.take(seconds)
    rig.produce({})
    if not read_latest(file).rows["aggregate in"][-1] > 0.0:
        raise EngineError("the application has processed no row", remedy="run the application by hand and see why")
    _work_off(rig, file)
    rig.produce({"tapped": 20_000.0})
    rig.take(0.2 * seconds)
    first = read_latest(file)
    rig.take(0.5 * seconds)
    last = read_latest(file)
    rig.produce({})
    # The rows that reach the last stage, converted to input rows: between the stages rows may queue.
    took = (last.rows["aggregate in"][-1] - first.rows["aggregate in"][-1]) / (last.times[-1] - first.times[-1])
    rate = took * last.rows["filter in"][-1] / last.rows["filter out"][-1]
    _work_off(rig, file)
    return float(rate)


def _work_off(rig: Rig, file: Path) -> None:
    """Wait until the last stage has read every row that the producer sent and the filter kept."""
    while True:
        rig.take(0.5)
        rows = read_latest(file).rows
        if rows["filter in"][-1] >= rig.sent("tapped") and rows["aggregate in"][-1] >= rows["filter out"][-1]:
            return


def _watch(engine: SparkEngine, provider: Provider, rig: Rig, seconds: float) -> list[Moment]:
    """Observe for `seconds`; return Treadle's figures at each reading of the counters."""
    found: list[Moment] = []
    for when, snapshot in readings(engine, provider, rig, seconds):
        instances = snapshot.topology.instances
        rows = [row for row, each in enumerate(instances) if each.query == "tapped"]
        stages = [instances[row].operators for row in rows]
        order = list(dict.fromkeys(stages))
        if len(order) == len(STAGES):
            of_stage = np.array([order.index(each) for each in stages])
            found.append(Moment(when, {name: _together(name, snapshot[name][rows], of_stage) for name in METRICS}))
    return found


def _together(name: str, column: Floats, of_stage: Any) -> Floats:
    """Combine the partitions of each stage: ages by the maximum, ratios by the mean, all else by the sum."""
    if name in AGES:
        found = np.full(len(STAGES), np.nan)
        np.fmax.at(found, of_stage, column)
        return found
    total = np.bincount(of_stage, column, len(STAGES)).astype(np.float64)
    return total / np.bincount(of_stage, minlength=len(STAGES)) if name in RATIOS else total


def _compared(moments: Sequence[Moment], taps: Taps) -> dict[str, Any]:
    when = np.array([moment.time for moment in moments])
    said = {name: np.array([moment.columns[name] for moment in moments]) for name in METRICS}
    return {stage: _stage(number, stage, when, said, taps) for number, stage in enumerate(STAGES)}


def _stage(number: int, stage: str, when: Floats, said: Mapping[str, Floats], taps: Taps) -> dict[str, Any]:
    taken, left = taps.at(taps.rows, f"{stage} in", when), taps.at(taps.rows, f"{stage} out", when)
    cpu = taps.at(taps.cpu, f"{stage} in", when)
    name = "queue" if number else "external_queue"
    queue = said[name][:, number]
    # The application does not count rows that wait in Kafka, so the source's queue can't be compared.
    true = taps.at(taps.rows, f"{STAGES[number - 1]} out", when) - taken if number else np.full(len(when), np.nan)
    age = when - taps.at(taps.created, f"{stage} in", when)
    waits = (true > 0.0) & (queue > 0.0)
    mine = {
        "in": said["tuples_in"][:, number],
        "out": said["tuples_out"][:, number],
        "cpu": said["cpu_time"][:, number],
    }
    return {
        "moments": len(when),
        "queue_error": queue_error(queue, true) if number else None,
        **rate_errors(when, mine, {"in": taken, "out": left, "cpu": cpu}),
        "decided_selectivity_error": decided_error(when, said["selectivity"][:, number], left, taken),
        "decided_cost_error": decided_error(when, said["cost"][:, number], mine["cpu"], mine["in"]),
        "age_error_ms": median(np.abs(said["head_age"][:, number] - age)[waits]) * 1e3
        if number
        else median(np.abs(said["latency"][:, number] - age)) * 1e3,
        "median_age_ms": median(age) * 1e3,
        "taken_for_idle": float(np.mean((queue <= 0.0) & (true > FEW_ROWS))),
        "taken_for_busy": float(np.mean((queue > 0.0) & (true <= 0.0))),
    }
