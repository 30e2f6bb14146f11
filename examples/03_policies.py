"""One pipeline under several policies, changed while it runs.

    treadle policies                                                   # what there is, and what each is good for
    treadle run examples/03_policies.py --policy fcfs --for 60s
    treadle ctl policy highest-rate                                    # meanwhile, in another terminal
    treadle ctl policy weighted:qs=0.7,hr=0.3
    python examples/03_policies.py                                     # or all of it in one

The queries differ in what a row costs and in how many rows come out, which is what policies look at.
"""

import time

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

import treadle
from treadle.errors import ConfigError

POLICIES = ("fcfs", "highest-rate", "queue-size", "chain", "multi-class:low=fcfs")
SECONDS = 6

p = treadle.Pipeline("policies")


@p.source
def orders(spark):
    """Orders of ten customers."""
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    return ticks.selectExpr("value % 10 AS customer", "1D + value % 90 AS amount")


@p.source
def refunds(spark):
    """A second source."""
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    return ticks.selectExpr("value % 10 AS customer", "1D + value % 20 AS amount")


@F.pandas_udf(DoubleType())
def with_tax(amount: pd.Series) -> pd.Series:
    """A function of whole columns, in a Python worker."""
    return amount * 1.19


@p.operator
def taxed(orders):
    """Cost: high. Rows: as many as come in."""
    return orders.withColumn("amount", with_tax("amount"))


@p.operator
def booked(taxed, refunds):
    """Two inputs: each parameter is one."""
    return taxed.unionByName(refunds.withColumn("amount", -F.col("amount")))


@p.operator
def large(orders):
    """Cost: low. Rows: one in nine. `orders` has two readers, and each gets all of it."""
    return orders.where("amount > 80")


p.write("ledger", reads="booked", format="noop")
p.write("notices", reads="large", format="noop", priority=1)


def try_policies(run, policies=POLICIES, seconds=SECONDS):
    """Put one policy after the other in charge; of each, what waited at its end and the mean latency of both sinks."""
    for policy in policies:
        run.set_policy(policy)
        began = time.time()
        run.wait(seconds)
        waiting = sum(channel["rows"] for channel in run.status()["channels"].values())
        means = {sink.name: run.hops[sink.name].latency.summary(since=began).mean for sink in p.sinks}
        yield policy, waiting, means


if __name__ == "__main__":
    with p.start(policy=POLICIES[0]) as run:
        for policy, waiting, means in try_policies(run):
            print(f"{policy:22} waiting {waiting:5}   " + "   ".join(f"{k} {v:.3f} s" for k, v in means.items()))
        try:
            run.set_policy("fastest-first")
        except ConfigError as error:
            print(f"refused: {error}\nstill in charge: {run.policy}")
