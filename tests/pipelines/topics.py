"""Rows in Kafka topics, for tests of pipelines that read them."""

from __future__ import annotations

import json

from treadle.pipelines.channels.cluster import client_config


def produce(bootstrap: str, topic: str, *values: str, partitions: int = 1) -> None:
    """Put these into a topic, which is made if it is not there; without any it is only made."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient(client_config(bootstrap))
    if topic not in admin.list_topics(timeout=60).topics:
        admin.create_topics([NewTopic(topic, partitions)])[topic].result()
    producer = Producer(client_config(bootstrap))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def numbers(count: int, first: int = 0) -> list[str]:
    """Rows with a column `a` that counts up."""
    return [json.dumps({"a": a}) for a in range(first, first + count)]
