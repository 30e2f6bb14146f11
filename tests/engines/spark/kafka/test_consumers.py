from __future__ import annotations

import math

from treadle.engines.spark.kafka.consumers import Consumer, consumers
from treadle.engines.spark.threads.sockets import Traffic

CLIENT = "consumer-spark-kafka-source-1-executor-1"


def test_a_consumer_of_which_no_bytes_are_known_yet_has_figures_all_the_same() -> None:
    fetched = {f"kafka.consumer:type=consumer-fetch-manager-metrics,client-id={CLIENT},topic=t": {
        "records-consumed-total": 7.0}}  # fmt: skip
    bytes_ = {f"kafka.consumer:type=consumer-metrics,client-id={CLIENT}": {"outgoing-byte-total": None}}
    ((key, found),) = consumers(1, [{}, fetched, {}, bytes_]).items()
    assert key == (1, CLIENT)
    assert math.isnan(found.lag)
    assert found[1:] == Consumer(0.0, 7.0, Traffic(0, 0))[1:]
