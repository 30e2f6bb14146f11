"""`treadle bench hops`: the cost of a small batch on Spark's default set-up and on Treadle's, and that of idle hops.

On both set-ups the same hops read and write the same channels. The set-ups take turns, each run in a new process and
JVM.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.bench.apart import measured, medians
from treadle.bench.claims import Claims, Deaths, at_least, in_turns
from treadle.bench.usage import Meter
from treadle.pipelines.api.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from treadle.pipelines.run.run import Run

Progress = Callable[[str, float], None]
HOPS, IDLE_HOPS = 20, 50
SETUPS = ("spark", "treadle")


def run(*, repetitions: int = 2, seconds: float = 20.0, warm: float = 20.0, progress: Progress | None = None) -> Any:
    """Return batches per second and CPU per batch by set-up, and the cost of idle hops on Treadle's."""
    tell = progress or (lambda *_: None)
    found: dict[str, list[dict[str, float]]] = {setup: [] for setup in SETUPS}
    deaths = Deaths()
    steps = repetitions * len(SETUPS) + 1

    def measure(setup: str, number: int) -> None:
        tell(f"{HOPS} small hops, {setup}'s set-up", number / steps)
        found[setup].append(_apart("busy", setup, seconds, warm))

    in_turns(SETUPS, repetitions, measure, deaths)
    figures: dict[str, Any] = {setup: medians(runs) for setup, runs in found.items() if runs}
    tell(f"{IDLE_HOPS} idle hops", (steps - 1) / steps)
    with deaths.noted("idle"):
        figures["idle"] = _apart("idle", "treadle", seconds, warm)
    found_claims = claims(figures)
    figures["times_batches_per_s"] = found_claims[0]["measured"]
    return {**figures, **deaths.figures(), "claims": found_claims}


def claims(figures: Mapping[str, Any]) -> Claims:
    """Return the claim: with the settings of `treadle.session()` small batches are not slower."""
    return [
        at_least(
            "batches/s of small hops, treadle : Spark's default set-up",
            lambda: figures["treadle"]["batches_per_s"] / figures["spark"]["batches_per_s"],
            1.0,
        )
    ]


def pipeline(hops: int) -> Pipeline:
    """Build a pipeline of operators that read one feed, each with a sink that discards its rows."""
    p = Pipeline("small-hops")
    p.feed("numbers", schema="id long, v double")
    for number in range(hops // 2):
        p.operator(name=f"double{number}", inputs=("numbers",))(_double)
        p.write(f"out{number}", reads=f"double{number}", format="noop")
    return p


def _double(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("id", "v * 2 as v")


def _apart(what: str, setup: str, seconds: float, warm: float) -> dict[str, float]:
    order = {"what": what, "setup": setup, "seconds": seconds, "warm": warm}
    return measured(__name__, order, f"{what} hops on {setup}'s set-up")


def _main() -> None:
    from treadle.pipelines.spark.session import session

    order = json.loads(sys.argv[1])
    cheap = order["setup"] == "treadle"
    spark = session("bench-hops", cheap=cheap, master=None if cheap else "local[*]")
    spark.sparkContext.setLogLevel("OFF")
    folder = Path(tempfile.mkdtemp(prefix="treadle-"))
    options: dict[str, Any] = {"policy": "fcfs"} if cheap else {"policy": "none", "enforce": "none"}
    busy = order["what"] == "busy"
    try:
        with pipeline(HOPS if busy else IDLE_HOPS).start(spark, folder=folder, **options) as running:
            found = _busy(running, order) if busy else _idle(running, order)
            running.stop(timeout=1.0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(json.dumps(found) + "\n")


def _busy(running: Run, order: dict[str, Any]) -> dict[str, float]:
    """Measure busy hops: the feed gets 20 rows every 50 ms, so that every hop always has a small batch to run."""
    feed, stop = running.feed("numbers"), threading.Event()
    rows = [{"id": number, "v": 0.5} for number in range(20)]

    def fill() -> None:
        while not stop.wait(0.05):
            feed.append(rows)

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    time.sleep(order["warm"])
    meter, before, idle = Meter(running.spark), _batches(running), running.gate.stats.idle
    time.sleep(order["seconds"])
    used, count, lost = meter.read(), _batches(running) - before, running.gate.stats.idle - idle
    stop.set()
    filler.join()
    running.check()
    return {
        "batches_per_s": count / used.seconds,
        "cpu_ms_per_batch": (used.spark_cores + used.treadle_cores) * used.seconds / count * 1e3,
        "scheduler_ms_per_batch": used.treadle_cores * used.seconds / count * 1e3,
        "slot_idle_share": lost / used.seconds / running.gate.slots,
        "cores": used.spark_cores + used.treadle_cores,
    }


def _idle(running: Run, order: dict[str, Any]) -> dict[str, float]:
    feed = running.feed("numbers")
    feed.append([{"id": 1, "v": 0.5}])  # so that every hop runs once
    while not running.drained():
        time.sleep(0.1)
    time.sleep(order["warm"] / 2)
    meter = Meter(running.spark)
    time.sleep(order["seconds"])
    used = meter.read()
    running.check()
    return {"hops": len(running.hops), "cores": used.spark_cores + used.treadle_cores, "memory_gb": used.memory_gb}


def _batches(running: Run) -> int:
    return sum(hop.batches for hop in running.hops.values())


if __name__ == "__main__":
    _main()
