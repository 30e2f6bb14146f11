"""Base metrics of a Spark application, by where they are read."""

from __future__ import annotations

from treadle.engines.spark.counters.columns import OFFERS as COUNTED

FROM_BEANS = frozenset({"external_queue", "tuples_in"})
"""From the MBeans of Kafka's clients."""
FROM_AGENT = COUNTED - FROM_BEANS - {"queue"}
"""Only from the agent's counters inside of running tasks; without them `queue` is an estimate."""
OFFERS = frozenset({"cpu_time", "run_wait", "queue"}) | FROM_BEANS | FROM_AGENT


def offered(*, beans: bool, agent: bool) -> frozenset[str]:
    """Return the metrics that can be read: all with Treadle's agent, else fewer, and fewest without Kafka's MBeans."""
    if agent:
        return OFFERS
    return OFFERS - FROM_AGENT - (frozenset() if beans else FROM_BEANS)
