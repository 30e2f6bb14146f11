"""More payments than the machine can work on: fraud stays exact, revenue stays known to 5 %, the rest gives way.

    treadle run examples/06_promises.py --for 60s
    python examples/06_promises.py                            # shows what each sink is promised and has
    python examples/06_promises.py 100                        # the same with as many payments a second: nothing is shed

Alerts and sums are in out/promises.
"""

import os
import sys
from pathlib import Path

import treadle

OUT = Path("out/promises").absolute()
RATE = int(os.environ.get("RATE", "4000"))
"""Payments a second."""
HASHES = 500
"""For a payment, as what a model or a lookup would cost: some tenths of a millisecond."""

p = treadle.Pipeline("promises")


# Whatever has to go, large payments are not among it.
@p.source(shed=treadle.by_utility("CASE WHEN amount > 900 THEN double('infinity') ELSE 1.0 END"))
def payments(spark):
    """One in a hundred is large."""
    ticks = spark.readStream.format("rate").option("rowsPerSecond", RATE).load()
    return ticks.selectExpr("value AS id", "IF(value % 100 = 7, 950.0D, 10.0D + value % 50) AS amount")


def scored(payments):
    """Some work for each row, in the JVM."""
    score = f"aggregate(sequence(1, {HASHES}), cast(id AS string), (a, x) -> sha2(a, 512)) AS score"
    return payments.selectExpr("*", score)


@p.sink(priority=10, min_accuracy=1.0)
def fraud(payments, batch_id):
    """It is promised everything, and does its work for large payments only."""
    scored(payments.where("amount > 900")).write.mode("overwrite").json(f"{OUT}/fraud/batch={batch_id}")


# What matters of a sum is how well it is known: of many payments few are enough.
@p.sink(priority=5, min_accuracy=0.95, accuracy=treadle.relative_error("amount", window="60s"))
def revenue(payments, batch_id):
    """The sum of all payments, also of those that were dropped, with the interval in which it lies."""
    total = scored(payments).groupBy().agg(treadle.corrected("amount").alias("amount"))
    total.write.mode("overwrite").json(f"{OUT}/revenue/batch={batch_id}")


@p.sink(priority=1, min_accuracy=0.05)
def archive(payments):
    """It takes what is left."""
    scored(payments).write.format("noop").mode("append").save()


def told(run):
    """A line for each sink."""
    for name, sink in run.status()["quality"]["sinks"].items():
        has = "nothing yet" if sink["accuracy"] is None else f"{sink['accuracy']:.1%}"
        kept = f", by {sink['kept']:.1%} of its rows" if sink["own_accuracy"] and sink["kept"] is not None else ""
        yield f"{name:8} priority {sink['priority']:2g}, at least {sink['min_accuracy']:.0%}: has {has}{kept}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        RATE = int(sys.argv[1])
    with p.start(cycle="1s") as run:
        for _ in range(4):
            run.wait("10s")
            print(*told(run), "", sep="\n")
