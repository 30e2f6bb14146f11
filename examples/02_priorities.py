"""One urgent alert among four enrichment jobs that want most of the machine.

    treadle run examples/02_priorities.py --for 20s
    treadle run examples/02_priorities.py --for 20s --enforce none --folder .treadle/alone    # Spark alone
    python examples/02_priorities.py

Compare p50 and p99 of `alerts` in the last table. Alerts are in out/priorities.
"""

import hashlib
from pathlib import Path

import treadle

OUT = Path("out/priorities").absolute()
JOBS = 4
ROUNDS = 1000
"""Hashes for a row: about half a millisecond."""

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


def latencies(status):
    """How old rows were when they left each sink, in seconds: (p50, p99)."""
    found = {name: hop.get("latency_seconds") for name, hop in status["hops"].items()}
    return {name: (seen["p50"], seen["p99"]) for name, seen in found.items() if seen and seen["p50"] is not None}


if __name__ == "__main__":
    run = p.run(seconds="20s")
    for sink, (p50, p99) in latencies(run.status()).items():
        print(f"{sink:12} p50 {p50:6.3f} s   p99 {p99:6.3f} s")
