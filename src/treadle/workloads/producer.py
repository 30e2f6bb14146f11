"""Fills topics at given rates from a separate process. A row is the time at which it was made, in nanoseconds.

The last four bits of that time are replaced by those of the row's number, so that a filter can keep an exact number of
every sixteen rows.

The process reads lines with the rates of all topics, and answers each line with each topic's number of rows so far.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Self

INTERVAL = 0.005
SIXTEEN = 16


class Producer:
    """The producing process, until the end of the `with` block."""

    def __init__(self, servers: str) -> None:
        command = [sys.executable, "-m", "treadle.workloads.producer", servers]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes the standard input, which ends the process

    def rates(self, rates: Mapping[str, float]) -> dict[str, int]:
        """Set the rate of each topic in rows per second; other topics get none. Return by topic all rows sent."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(dict(rates)) + "\n")
        self._process.stdin.flush()
        counts: dict[str, int] = json.loads(self._process.stdout.readline())
        return counts


def _main() -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": sys.argv[1], "linger.ms": 1})
    rates: dict[str, float] = {}
    owed: dict[str, float] = {}
    sent: dict[str, int] = {}
    due = time.monotonic()
    while True:
        while select.select([sys.stdin], [], [], 0.0)[0]:
            line = sys.stdin.readline()
            if not line:
                producer.flush(5.0)
                return
            rates = json.loads(line)
            owed = dict.fromkeys(rates, 0.0)
            sys.stdout.write(json.dumps(sent) + "\n")
            sys.stdout.flush()
            due = time.monotonic()
        due += INTERVAL
        for topic, rate in rates.items():
            owed[topic] += rate * INTERVAL
            now, first = time.time_ns() // SIXTEEN * SIXTEEN, sent.get(topic, 0)
            for number in range(first, first + int(owed[topic])):
                _produce(producer, topic, str(now + number % SIXTEEN))
            sent[topic] = first + int(owed[topic])
            owed[topic] %= 1.0
        producer.poll(0)
        time.sleep(max(0.0, due - time.monotonic()))


def _produce(producer: Any, topic: str, value: str) -> None:
    """Put a row into the producer's queue; if the queue is full, because the broker is slow, wait for room."""
    while True:
        try:
            producer.produce(topic, value)
            return
        except BufferError:
            producer.poll(INTERVAL)


if __name__ == "__main__":
    _main()
