"""One urgent alert among enrichment jobs that together want the whole machine.

    treadle run examples/02_priorities.py --for 30s
    python examples/02_priorities.py                          # shows how old results are once all is warm
    python examples/02_priorities.py none                     # the same with Spark alone

Alerts are in out/priorities.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import treadle

OUT = Path("out/priorities").absolute()
JOBS = int(os.environ.get("JOBS", 6 * len(os.sched_getaffinity(0))))
ROUNDS = 1000
"""Hashes for a row: some tenths of a millisecond. Spark's own work for each batch comes on top."""

p = treadle.Pipeline("priorities")


@p.source
def readings(spark):
    """50 sensors, each with a reading four times a second."""
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
    return ticks.selectExpr("value AS id", "value % 50 AS sensor", "20 + 12 * sin(value / 40) AS celsius")


@p.operator
def hot(readings):
    """Native expressions run in the JVM; this one costs next to nothing."""
    return readings.where("celsius > 31")


# The sink's priority is also that of all that it needs: here `hot` and `readings`.
@p.sink(priority=10)
def alerts(hot, batch_id):
    """Each batch is a folder of its own, so one that is repeated after a crash replaces itself."""
    hot.write.mode("overwrite").json(f"{OUT}/batch={batch_id}")


def enrich(tables):
    """What mapInPandas calls in a Python worker, with one pandas table after the other."""
    for table in tables:
        table["mark"] = [hashlib.pbkdf2_hmac("sha256", str(id_).encode(), b"salt", ROUNDS).hex() for id_ in table["id"]]
        yield table


def enriched(readings):
    """The same work for each job, so it is one function."""
    return readings.mapInPandas(enrich, "id bigint, sensor bigint, celsius double, mark string")


# A function that is used several times gets names, and is told what to read.
for job in range(JOBS):
    p.operator(name=f"enriched_{job}", inputs="readings")(enriched)
    p.write(f"archive_{job}", reads=f"enriched_{job}", format="noop")


def latencies(run, since=0.0):
    """How old rows were when they left each sink, in seconds: (p50, p99)."""
    found = {sink.name: run.hops[sink.name].latency.summary(since) for sink in p.sinks}
    return {name: (seen.p50, seen.p99) for name, seen in found.items() if seen.rows}


if __name__ == "__main__":
    enforce = sys.argv[1] if len(sys.argv) > 1 else "gate"
    with p.start(enforce=enforce, folder=f".treadle/priorities-{enforce}") as run:
        run.wait("15s")
        warm = time.time()
        run.wait("20s")
    for sink, (p50, p99) in latencies(run, warm).items():
        print(f"{sink:12} p50 {p50:6.3f} s   p99 {p99:6.3f} s")
