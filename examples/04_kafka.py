"""Orders from a Kafka topic, the large ones into another: exactly the ones that came, in JSON.

    treadle jars kafka spark-kafka                                     # once: the broker and Spark's connector
    treadle kafka start                                                # or name one of your own: KAFKA=host:port
    python examples/04_kafka.py                                        # puts orders in, runs, shows what comes out

    python examples/04_kafka.py fill 1000                              # the same in steps
    treadle run examples/04_kafka.py --for 20s
    treadle run examples/04_kafka.py --for 20s --channels kafka --folder .treadle/kafka-channels

The last one also joins its hops by topics (`kafka-example.checked`, …) instead of files, as on a cluster.
"""

import json
import os
import sys

from pyspark.sql import functions as F

import treadle

BROKER = os.environ.get("KAFKA", "127.0.0.1:9092")
ORDERS, LARGE = os.environ.get("ORDERS", "orders"), os.environ.get("LARGE", "large-orders")

p = treadle.Pipeline("kafka-example")

# Each value is a JSON object with these columns. What is none is counted (`bad_rows` in the status) and left out.
p.topic(
    "orders",
    topic=ORDERS,
    schema="id bigint, customer string, amount double",
    options={"kafka.bootstrap.servers": BROKER},
)


@p.operator
def checked(orders):
    """An operator like any other."""
    return orders.where("amount > 0")


@p.operator
def messages(checked):
    """What Spark's Kafka writer wants: a column `value`, and `key` if there is one."""
    value = F.to_json(F.struct("id", "customer", "amount"))
    return checked.where("amount >= 900").select(F.col("customer").alias("key"), value.alias("value"))


# Kafka itself can't tell a repeated batch: after a crash the last one may be there twice, so readers go by `id`.
p.write("large", reads="messages", format="kafka", options={"kafka.bootstrap.servers": BROKER, "topic": LARGE})


def fill(count, first=0):
    """Put orders into the topic."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": BROKER})
    for id_ in range(first, first + count):
        order = {"id": id_, "customer": f"c{id_ % 7}", "amount": float(id_ * 37 % 1000)}
        producer.produce(ORDERS, json.dumps(order))
        producer.poll(0)
    if producer.flush(30):
        raise SystemExit(f"no broker at {BROKER}: treadle kafka start")


def large_orders(seconds=5.0):
    """All large orders in the other topic, by id; waits for more until none has come for a while."""
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": BROKER, "group.id": "show", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "allow.auto.create.topics": True})
    consumer.subscribe([LARGE])
    found = {}
    try:
        while (message := consumer.poll(seconds)) is not None:
            if message.error() is None:
                order = json.loads(message.value())
                found[order["id"]] = order
    finally:
        consumer.close()
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["fill"]:
        fill(int(sys.argv[2]))
    else:
        fill(1000)
        p.run(seconds="20s")
        found = large_orders()
        print(f"{len(found)} large orders, the first of them: {found[min(found)]}")
