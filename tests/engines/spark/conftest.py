"""The application that all tests here look at, with two queries in Real-Time Mode, and the rows that they read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from applications import SparkProcess
from support import named
from treadle import jars
from treadle.broker import Broker

RATE = 50
"""Rows a second that come in, all the time."""


@pytest.fixture(scope="package")
def topic(broker: Broker) -> Iterator[str]:
    """A topic that numbers are written to, all the time."""
    from confluent_kafka import Producer

    name, done = named("numbers"), threading.Event()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})

    def write() -> None:
        number = 0
        while not done.is_set():
            for _ in range(RATE // 10):
                producer.produce(name, str(number))
                number += 1
            producer.poll(0)
            time.sleep(0.1)

    producer.produce(name, "0")
    assert producer.flush(60) == 0
    writer = threading.Thread(target=write)
    writer.start()
    yield name
    done.set()
    writer.join()
    producer.flush(10)


@pytest.fixture(scope="package")
def attached(broker: Broker, topic: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """The application with two queries: `chain` of three stages and long batches, `count` of two and short ones."""
    jars.fetch("spark-kafka", "jolokia")
    with SparkProcess(tmp_path_factory.mktemp("spark"), broker, topic, master="local[12]") as started:
        started.start("chain", "chain", 300)
        started.start("count", "count", 2)
        yield started
