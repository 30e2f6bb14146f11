"""Which base metrics can be had of a Spark application, and from whom."""

from __future__ import annotations

from treadle.engines.spark.counters.columns import OFFERS as COUNTED

FROM_BEANS = frozenset({"external_queue", "tuples_in"})
"""From the MBeans of Kafka's clients."""
FROM_AGENT = COUNTED - FROM_BEANS - {"queue"}
"""Only from the counters inside of running tasks; without them a queue is an estimate."""
OFFERS = frozenset({"cpu_time", "run_wait", "queue"}) | FROM_BEANS | FROM_AGENT


def offered(*, beans: bool, agent: bool) -> frozenset[str]:
    """What can be measured with the MBeans of Kafka's clients, and with Treadle's own agent."""
    if agent:
        return OFFERS
    return OFFERS - FROM_AGENT - (frozenset() if beans else FROM_BEANS)
