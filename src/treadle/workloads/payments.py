"""Payments with an expensive enrichment, a sink that detects fraud, and a sink that reports the sum paid.

Rows are dropped by utility: suspicious payments are never dropped, so fraud detection stays exact, however many of the
other rows are dropped. The report is corrected for dropped rows. In Stream-Economics all drops are random.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.enforce.shed import by_utility
from treadle.estimates import corrected
from treadle.pipelines.api.pipeline import Pipeline
from treadle.workloads.burn import burn
from treadle.workloads.injector import DIFFERENT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAYMENTS = "payments"
PAYMENT = "id long, card long, amount double"
SUSPICIOUS = 10_000.0
ONE_IN = 100
CARDS = 5_000
USE = f"CASE WHEN amount >= {SUSPICIOUS} THEN double('infinity') ELSE 1.0 END"


def payment(number: int) -> dict[str, Any]:
    """A payment, made from its number alone; one in a hundred is suspicious."""
    random = np.random.default_rng([5, number])
    amount = float(np.round(random.lognormal(3.0, 1.0), 2))
    return {
        "id": number,
        "card": int(random.integers(CARDS)),
        "amount": SUSPICIOUS + amount if number % ONE_IN == 0 else min(amount, SUSPICIOUS - 1.0),
    }


class Found:
    """The results of both sinks so far, by batch id, so that a repeated batch counts once."""

    def __init__(self) -> None:
        self.suspicious: dict[int, int] = {}
        self.paid: dict[int, tuple[float, float]] = {}
        """By batch id: the corrected sum, and half the width of its confidence interval."""

    def figures(self, sent: int) -> dict[str, Any]:
        """The results, and the true values for `sent` rows, in which the first `DIFFERENT` payments repeat."""
        amounts = [payment(number)["amount"] for number in range(DIFFERENT)]
        rounds, rest = divmod(sent, DIFFERENT)
        truth = rounds * sum(amounts) + sum(amounts[:rest])
        return {
            "suspicious_sent": rounds * (DIFFERENT // ONE_IN) + math.ceil(rest / ONE_IN),
            "suspicious_found": sum(self.suspicious.values()),
            "paid": round(truth, 2),
            "paid_corrected": round(sum(paid for paid, _ in self.paid.values()), 2),
            "paid_half_width": round(math.hypot(*(reach for _, reach in self.paid.values())), 2),
        }


def pipeline(hashes: int, *, prefix: str = "", name: str = "payments") -> tuple[Pipeline, Found]:
    """The pipeline, with `hashes` per payment, and its results."""
    p = Pipeline(name)
    found = Found()
    p.topic(PAYMENTS, schema=PAYMENT, topic=f"{prefix}{PAYMENTS}", shed=by_utility(USE))

    @p.operator
    def enriched(payments: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return payments.withColumn("profile", f.expr(burn("cast(card as string)", hashes)))

    @p.sink(priority=5, min_accuracy=0.1)
    def fraud(enriched: DataFrame, batch_id: int) -> None:
        found.suspicious[batch_id] = enriched.where(f"amount >= {SUSPICIOUS}").count()

    @p.sink(priority=1, min_accuracy=0.1)
    def report(enriched: DataFrame, batch_id: int) -> None:
        [row] = enriched.agg(corrected("amount").alias("paid")).collect()
        known = row.paid["high"] is not None
        found.paid[batch_id] = row.paid["value"], (row.paid["high"] - row.paid["low"]) / 2 if known else 0.0

    return p, found
