"""Bronze, silver, gold: payments as they came, the clean ones, what people look at; and an alert with a latency goal.

    treadle show examples/05_medallion.py --svg out/medallion.svg
    treadle run examples/05_medallion.py --policy min-latency --for 30s
    python examples/05_medallion.py

The alert wants rows within 2 s (`latency_goal`), the others have all the time there is: under `min-latency`, whatever
the alert needs goes first when its time gets short. Tables are in out/medallion, one folder for each batch.

Add or remove a sink in this file while it runs: `treadle ctl reload examples/05_medallion.py` carries that out.
"""

import time
from pathlib import Path

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

import treadle

OUT = Path("out/medallion").absolute()
IN_A_ROW = 3
PAYMENT = "id bigint, card bigint, amount double, accepted boolean, at timestamp"

p = treadle.Pipeline("medallion")


@p.source(arrival="timestamp")
def raw(spark):
    """JSON texts; one in 50 is torn."""
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    accepted = "value % 10 < 8 OR value div 20 % 10 > 3"
    payment = f"value AS id, value % 20 AS card, 5.0 + value % 95 AS amount, {accepted} AS accepted, timestamp AS at"
    texts = ticks.selectExpr("value", "timestamp", f"to_json(struct({payment})) AS text")
    return texts.selectExpr("timestamp", "if(value % 50 = 49, left(text, 20), text) AS text")


@p.sink
def bronze(raw, batch_id):
    """All that came, as it came."""
    save(raw, "bronze", batch_id)


@p.operator
def payments(raw):
    """What can be read. It has three readers."""
    row = F.from_json("text", PAYMENT)
    return raw.select(row.alias("row")).select("row.*").where("id IS NOT NULL AND at IS NOT NULL")


@p.sink
def silver(payments, batch_id):
    """Clean rows."""
    save(payments, "silver", batch_id)


@p.operator
def per_card(payments):
    """Totals for each card and 5 seconds. With a watermark a window is final some time after its end: it comes once."""
    late = payments.withWatermark("at", "2 seconds")
    totals = late.groupBy(F.window("at", "5 seconds").alias("window"), "card")
    return totals.agg(F.count("*").alias("payments"), F.sum("amount").alias("amount"))


@p.sink
def gold(per_card, batch_id):
    """The table that reports are made of."""
    save(per_card, "gold", batch_id)


def declined_in_a_row(key, tables, state):
    """State of one card: how many declined payments in a row. A row comes out whenever there are enough of them."""
    count = state.get[0] if state.exists else 0
    found = []
    for table in tables:
        for row in table.sort_values("id").itertuples():
            count = 0 if row.accepted else count + 1
            if count >= IN_A_ROW:
                found.append((key[0], row.id, count))
    state.update((count,))
    yield pd.DataFrame(found, columns=["card", "id", "declined"])


@p.operator
def suspicious(payments):
    """State in Python, a group at a time."""
    return payments.groupBy("card").applyInPandasWithState(
        declined_in_a_row,
        "card bigint, id bigint, declined int",
        "declined int",
        "append",
        GroupStateTimeout.NoTimeout,
    )


@p.sink(priority=10, latency_goal="2s")
def alert(suspicious, batch_id):
    """The one that somebody waits for."""
    save(suspicious, "alert", batch_id)


def save(rows, table, batch_id):
    """A batch that is repeated after a crash replaces itself: nothing is there twice."""
    rows.write.mode("overwrite").parquet(f"{OUT}/{table}/batch={batch_id}")


if __name__ == "__main__":
    with p.start(policy="min-latency") as run:
        run.wait("10s")
        warm = time.time()
        run.wait("20s")
    for sink in p.sinks:
        seen = run.hops[sink.name].latency.summary(since=warm)
        print(f"{sink.name:8} {seen.rows:6} rows, p50 {seen.p50:.3f} s, p99 {seen.p99:.3f} s")
