"""A pipeline in real time on a cluster: given more than its workers can do until it sheds, then less until it does not.

python cluster_realtime.py FOLDER MASTER BROKER TOPIC

Prints its promises: when it has shed for some cycles, and when it keeps all again.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

import treadle
from treadle import jars
from treadle.pipelines.channels.cluster import client_config
from treadle.workloads.burn import burn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from treadle.pipelines.run.run import Run

FOLDER, MASTER, BROKER, TOPIC = sys.argv[1:5] if len(sys.argv) > 4 else (".", "local[8]", "", "numbers")
HASHES = 2000
MUCH, LITTLE = 3000, 20
"""Rows a second."""
LONG = 120.0

p = treadle.Pipeline(f"cluster-{TOPIC}")
p.topic("numbers", topic=TOPIC, schema="a bigint")


@p.operator
def worked(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr("a", f"{burn('cast(a as string)', HASHES)} AS value")


p.write(
    "out",
    reads="worked",
    format="kafka",
    min_accuracy=0.01,
    options={"kafka.bootstrap.servers": BROKER, "topic": f"{TOPIC}-out"},
)


class Source:
    """Gives rows at a rate that can be changed."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._producer = Producer({**client_config(BROKER), "linger.ms": 5})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sent = 0.0
        while not self._ended.wait(0.05):
            sent += self.rate * 0.05
            while sent >= 1.0:
                self._producer.produce(TOPIC, json.dumps({"a": int(time.time())}))
                sent -= 1.0
            self._producer.poll(0)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush(30)


def when(run: Run, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Print the promises as soon as they are so."""
    limit = time.monotonic() + LONG
    while True:
        run.check()
        promises = run.status()["quality"]
        if promises["streams"] and holds(promises["streams"]["numbers>out"]):
            break
        assert time.monotonic() < limit, promises
        time.sleep(0.2)
    sys.stdout.write(json.dumps(promises) + "\n")


if __name__ == "__main__":
    jars.fetch("spark-kafka")
    config = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.memory": "1g"}
    spark = treadle.session("cluster", master=MASTER, config=config)
    source = Source(MUCH)
    with p.start(spark, folder=Path(FOLDER) / "work", layout="realtime", channels="kafka", kafka=BROKER) as run:
        when(run, lambda stream: stream["keep"] < 0.9 and abs(stream["kept"] - stream["keep"]) < 0.1)
        source.rate = LITTLE
        when(run, lambda stream: stream["keep"] == 1.0)
        source.close()
    spark.stop()
