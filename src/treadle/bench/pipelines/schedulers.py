"""`treadle bench pipelines`: Spark's FIFO and FAIR against Treadle and its policies on queries that fill the machine.

All variants take turns in one session, several times, so that other load affects all alike. The part `classes` is the
multi-class workload; Spark's default set-up needs its own session, in its own process. The parts `policies`, `assign`
and `rules` are in the modules of these names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treadle.bench.apart import measured, medians
from treadle.bench.claims import Claims, Deaths, at_least, in_turns
from treadle.bench.pipelines import assign, policies, rules
from treadle.bench.pipelines.multi_class import VARIANTS, measure
from treadle.workloads import multi_class
from treadle.workloads.burn import calibrate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[str, float], None]
MEANT_FOR = {"hr": "mean_ms", "chain": "queued_rows", "fcfs": "max_ms", "qs": "queue_variance"}
"""By policy: the figure that it should make small."""
ON_DEFAULT_SETUP = "fifo on Spark's default set-up"


def run(
    parts: Collection[str],
    variants: Sequence[str] = tuple(VARIANTS),
    *,
    repetitions: int = 3,
    seconds: float = 20.0,
    warm: float = 8.0,
    load: float = multi_class.LOAD,
    default_setup: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return the figures of each variant, and the claims.

    Figures are medians over the repetitions in the part `classes`, means with intervals in the others. `load` is the
    load of `classes` as a share of all cores, without Spark's cost for each batch.
    """
    from treadle.pipelines.spark.session import session

    tell = progress or (lambda *_: None)
    spark = session("bench-pipelines", fair=True)
    spark.sparkContext.setLogLevel("OFF")  # a batch that is stopped half-way is no error here
    unit = calibrate(spark)
    queries = multi_class.chains(unit, load)
    measure(spark, queries, "fifo", seconds=1.0, warm=warm)  # the JVM compiles the common code
    deaths = Deaths()
    found: dict[str, Any] = {}
    held: Claims = []
    if "policies" in parts:
        each = policies.run(spark, unit, deaths, tell, repetitions=repetitions, seconds=seconds, warm=warm)
        found, held = policies.figures(each), policies.claims(each)
    if "assign" in parts:
        each = assign.run(spark, unit, deaths, tell, repetitions=repetitions, seconds=seconds, warm=warm)
        found, held = found | assign.figures(each), held + assign.claims(each)
    if "rules" in parts:
        runs = rules.run(spark, queries, deaths, tell, repetitions=repetitions, seconds=seconds, warm=warm)
        found, held = found | rules.summary(runs), held + rules.claims(runs)
    if "classes" in parts:
        found |= _classes(spark, queries, variants, deaths, tell, repetitions=repetitions, seconds=seconds, warm=warm)
    spark.stop()
    if "classes" in parts:
        if default_setup:
            tell("Spark's default set-up", 1.0)
            with deaths.noted(ON_DEFAULT_SETUP):
                order = {"unit": unit, "load": load, "seconds": seconds, "warm": warm}
                found[ON_DEFAULT_SETUP] = measured(__name__, order, "the run on Spark's default set-up")
        held += claims(found, variants)
    return {**found, **deaths.figures(), "claims": held}


def _classes(
    spark: SparkSession,
    queries: Sequence[multi_class.Chain],
    variants: Sequence[str],
    deaths: Deaths,
    tell: Progress,
    *,
    repetitions: int,
    seconds: float,
    warm: float,
) -> dict[str, dict[str, float]]:
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    total = repetitions * len(variants)

    def measure_one(name: str, number: int) -> None:
        def told(what: str, part: float) -> None:
            tell(f"{what} ({number + 1} of {total})", (number + part) / total)

        runs[name].append(measure(spark, queries, name, seconds=seconds, warm=warm, progress=told).figures())

    in_turns(variants, repetitions, measure_one, deaths)
    return {name: medians(made) for name, made in runs.items() if made}


def claims(figures: Mapping[str, Any], variants: Sequence[str] = tuple(VARIANTS)) -> Claims:
    """Return the claims about `treadle`, which is the gate with its defaults, and about policies among `variants`."""

    def ratio(figure: str, over: str, under: str) -> Callable[[], float]:
        return lambda: figures[over][figure] / figures[under][figure]

    aims = [
        ("urgent p99 latency", "high_p99_ms", "fifo", "treadle", 3.0),
        ("urgent p99 latency", "high_p99_ms", "fair", "treadle", 1.5),
        ("rows/s", "rows_per_s", "treadle", "fifo", 1.0),
        *((figure, figure, "fifo", policy, 1.0) for policy, figure in MEANT_FOR.items()),
    ]
    return [
        at_least(f"{what}, {over} : {under}", ratio(figure, over, under), aim)
        for what, figure, over, under, aim in aims
        if over in variants and under in variants
    ]


def _main() -> None:
    from treadle.pipelines.spark.session import session

    order = json.loads(sys.argv[1])
    spark = session("bench-default", cheap=False)
    spark.sparkContext.setLogLevel("OFF")
    queries = multi_class.chains(order["unit"], order["load"])
    outcome = measure(spark, queries, "fifo", seconds=order["seconds"], warm=order["warm"] + 10.0)
    sys.stdout.write(json.dumps(medians([outcome.figures()])) + "\n")


if __name__ == "__main__":
    _main()
