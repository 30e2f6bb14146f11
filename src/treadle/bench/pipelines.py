"""`treadle bench pipelines`: Spark's FIFO and FAIR against Treadle and its policies on the multi-class workload.

All variants take turns in one session, several times, so that what the machine does meanwhile hits all alike. Spark's
default set-up, which needs a session of its own, runs in a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from treadle.bench.apart import claim, measured, medians
from treadle.bench.multi_class import VARIANTS, Measured, measure
from treadle.workloads import multi_class
from treadle.workloads.burn import calibrate

Progress = Callable[[str, float], None]
MEANT_FOR = {"hr": "mean_ms", "chain": "queued_rows", "fcfs": "max_ms", "qs": "queue_variance"}
"""What each policy is meant to make small."""


def run(
    variants: Sequence[str] = tuple(VARIANTS),
    *,
    repetitions: int = 3,
    seconds: float = 20.0,
    warm: float = 8.0,
    load: float = multi_class.LOAD,
    default_setup: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The figures of each variant (medians over the repetitions), and what follows from them.

    `load` is what the queries ask for as a share of all cores, before what Spark takes for each batch.
    """
    from treadle.pipelines.session import session

    tell = progress or (lambda *_: None)
    spark = session("bench-pipelines", fair=True)
    spark.sparkContext.setLogLevel("OFF")  # a batch that is stopped half-way is no error here
    unit = calibrate(spark)
    queries = multi_class.chains(unit, load)
    measure(spark, queries, "fifo", seconds=1.0, warm=warm)  # the JVM compiles what all will use
    runs: dict[str, list[Measured]] = {name: [] for name in variants}
    total = repetitions * len(variants)
    for number in range(total):
        name = variants[number % len(variants)]

        def told(what: str, part: float, number: int = number) -> None:
            tell(f"{what} ({number + 1} of {total})", (number + part) / (total + 1))

        runs[name].append(measure(spark, queries, name, seconds=seconds, warm=warm, progress=told))
    spark.stop()
    figures: dict[str, Any] = {name: medians([each.figures() for each in each_run]) for name, each_run in runs.items()}
    if default_setup:
        tell("Spark's default set-up", total / (total + 1))
        figures["fifo on Spark's default set-up"] = measured(
            __name__,
            {"unit": unit, "load": load, "seconds": seconds, "warm": warm},
            "the run on Spark's default set-up",
        )
    return {**figures, "claims": claims(figures)}


def claims(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """What ought to hold, with the ratio that was measured."""
    found = []
    treadle = figures.get("treadle")
    for other, least in (("fifo", 3.0), ("fair", 1.5)):
        if treadle and other in figures:
            ratio = figures[other]["high_p99_ms"] / treadle["high_p99_ms"]
            found.append(claim(f"urgent p99 latency, {other} : treadle", ratio, least))
    if treadle and "fifo" in figures:
        found.append(claim("rows/s, treadle : fifo", treadle["rows_per_s"] / figures["fifo"]["rows_per_s"], 1.0))
    for policy, figure in MEANT_FOR.items():
        if policy in figures and "fifo" in figures:
            ratio = figures["fifo"][figure] / figures[policy][figure]
            found.append(claim(f"{figure}, fifo : {policy}", ratio, 1.0))
    return found


def _main() -> None:
    from treadle.pipelines.session import session

    order = json.loads(sys.argv[1])
    spark = session("bench-default", cheap=False)
    spark.sparkContext.setLogLevel("OFF")
    queries = multi_class.chains(order["unit"], order["load"])
    outcome = measure(spark, queries, "fifo", seconds=order["seconds"], warm=order["warm"] + 10.0)
    sys.stdout.write(json.dumps(medians([outcome.figures()])) + "\n")


if __name__ == "__main__":
    _main()
